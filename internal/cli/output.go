package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// output is in what form an answer is wanted: --output.
type output struct{ form string }

func (o *output) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.form, "output", "o", "", "wide, name, json, yaml or jsonpath=TEMPLATE; empty for text")
	// Fails only for a flag that does not exist, or has a function already.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "name", "json", "yaml", "jsonpath="}, cobra.ShellCompDirectiveNoFileComp))
}

// wide reports whether a table has all its columns.
func (o *output) wide() bool { return o.form == "wide" }

// table reports whether people are to read the answer.
func (o *output) table() bool { return o.form == "" || o.form == "wide" }

// template is the template of the form jsonpath=TEMPLATE.
func (o *output) template() (string, bool) { return strings.CutPrefix(o.form, "jsonpath=") }

func (o *output) check() error {
	if template, ok := o.template(); ok {
		if template == "" {
			return errors.New("--output jsonpath= needs a template, such as jsonpath={.version.seq}")
		}
		_, err := printers.NewJSONPathPrinter(template)
		if err != nil {
			return fmt.Errorf("--output %s: %w", o.form, err)
		}
		return nil
	}
	switch o.form {
	case "", "wide", "name", "json", "yaml":
		return nil
	}
	return fmt.Errorf("--output %q is not wide, name, json, yaml or jsonpath=TEMPLATE", o.form)
}

// answer is what a command has to show.
type answer struct {
	message proto.Message
	names   func() []string // of what the answer is about, as KIND/NAME; nil: there are none
	text    func(*table)    // writes it for people
}

// show prints an answer in the form that is wanted.
func (o *output) show(opt Options, a answer) error {
	text, err := o.render(opt, a)
	if err != nil {
		return err
	}
	if _, err := opt.Out.Write(text); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

func (o *output) render(opt Options, a answer) ([]byte, error) {
	template, isPath := o.template()
	switch {
	case isPath:
		return byPath(a.message, template)
	case o.form == "json":
		return asJSON(a.message)
	case o.form == "yaml":
		return asYAML(a.message)
	case o.form == "name" && a.names == nil:
		return nil, errors.New("--output name: the answer names nothing")
	case o.form == "name":
		var b bytes.Buffer
		for _, name := range a.names() {
			b.WriteString(printable(name) + "\n")
		}
		return b.Bytes(), nil
	}
	t := newTable(o.wide(), opt.Now())
	a.text(t)
	return t.bytes(), nil
}

func raw(message proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return text, nil
}

// asJSON returns a message as JSON, with the same bytes every time, which protojson does not promise by itself.
func asJSON(message proto.Message) ([]byte, error) {
	text, err := raw(message)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	encoder := json.NewEncoder(&indented)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(json.RawMessage(text)); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return indented.Bytes(), nil
}

func asYAML(message proto.Message) ([]byte, error) {
	text, err := raw(message)
	if err == nil {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return nil, fmt.Errorf("encode answer as YAML: %w", err)
	}
	return text, nil
}

// byPath returns what a JSONPath template makes of a message, as kubectl would.
func byPath(message proto.Message, template string) ([]byte, error) {
	text, err := raw(message)
	if err != nil {
		return nil, err
	}
	object := make(map[string]any)
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	printer, err := printers.NewJSONPathPrinter(template)
	if err != nil {
		return nil, fmt.Errorf("--output jsonpath=%s: %w", template, err)
	}
	var b bytes.Buffer
	if err := printer.PrintObj(&unstructured.Unstructured{Object: object}, &b); err != nil {
		// Around what is wrong the printer writes the template and the whole answer.
		_, reason, _ := strings.Cut(err.Error(), "Error executing template: ")
		reason, _, _ = strings.Cut(reason, ". Printing more")
		return nil, fmt.Errorf("--output jsonpath=%s: %s", template, cmp.Or(reason, "it does not fit the answer"))
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// notice writes a line that is no part of the answer.
func notice(to io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(to, format+"\n", args...); err != nil {
		return fmt.Errorf("write notice: %w", err)
	}
	return nil
}
