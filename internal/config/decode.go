package config

import (
	"bytes"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/aliases"
)

// maxValues is how many values a configuration may have, by the count of [aliases.Values]: each takes two bytes to send, and some 200 to hold.
const maxValues = 100_000

// newCodecs knows v1 only: there is no internal version to convert to.
func newCodecs() (serializer.CodecFactory, error) {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		return serializer.CodecFactory{}, fmt.Errorf("register %v: %w", configv1.SchemeGroupVersion, err)
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict), nil
}

// Decode returns the configuration in YAML or JSON, as it is written: nothing is defaulted or validated yet. A field that
// does not exist, is given twice or is spelled in another case is an error, in the arguments of plugins too.
func Decode(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	if err := aliases.Few(data, maxValues); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	if err := aliases.Check(data); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	codecs, err := newCodecs()
	if err != nil {
		return nil, err
	}
	decoder := codecs.UniversalDeserializer()
	var strict []error
	obj, gvk, err := decoder.Decode(data, nil, nil)
	if s, ok := runtime.AsStrictDecodingError(err); ok {
		strict = append(strict, s.Errors()...)
	} else if err != nil {
		if runtime.IsNotRegisteredError(err) {
			err = fmt.Errorf("%w; `berth config convert` makes v1 of older versions", err)
		}
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	cfg, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("decode configuration: want KubeSchedulerConfiguration, got %s", gvk)
	}
	err = cfg.DecodeNestedObjects(runtime.WithoutVersionDecoder{Decoder: decoder})
	if s, ok := runtime.AsStrictDecodingError(err); ok {
		strict = append(strict, s.Errors()...)
	} else if err != nil {
		return nil, fmt.Errorf("decode configuration: %w", errors.Join(append(strict, err)...))
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("decode configuration: %w", runtime.NewStrictDecodingError(strict))
	}
	return cfg, nil
}

// Encode returns a configuration as YAML, arguments of plugins included.
func Encode(cfg *configv1.KubeSchedulerConfiguration) ([]byte, error) {
	codecs, err := newCodecs()
	if err != nil {
		return nil, err
	}
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		return nil, errors.New("encode configuration: no encoder for YAML")
	}
	var out bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion).Encode(cfg, &out); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return out.Bytes(), nil
}
