package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/aliases"
	"github.com/berth-scheduler/berth/internal/annotations"
	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/quantity"
)

// PluginService is a process with plugins of others, which is asked by berth.plugin.v1.
type PluginService struct {
	// Name is what logs, metrics and reasons call it: a DNS label, of no other one.
	Name string `json:"name"`
	// Address is where it listens: host:port, or unix:// and the path of a socket. "": it is Discovered, or Berth runs it itself.
	Address string `json:"address,omitempty"`
	// Discovered says that its processes announce in etcd where they listen.
	Discovered bool `json:"discovered,omitempty"`
	// Run is how Berth runs it itself, which goes with neither of them, nor with TLS: they talk over a socket of their own. Nil: it does not.
	Run *PluginRun `json:"run,omitempty"`
	// InProcess says that it is compiled in, and the binder serves it in its own process. A file says it of none.
	InProcess bool `json:"inProcess,omitempty"`
	// Plugins are those that profiles may enable: one at least, 64 at most.
	Plugins []ServicePlugin `json:"plugins"`
	// Timeout is how long an answer may take: above 0, a minute at most; 1s if the file does not say.
	Timeout metav1.Duration `json:"timeout"`
	// PreBindTimeout is how long what plugins do before a bind may take: above 0, an hour at most; 10m if the file does not say.
	PreBindTimeout metav1.Duration `json:"preBindTimeout"`
	// Ignorable says that it is passed over when it fails. Else attempts of pods that need it fail.
	Ignorable bool `json:"ignorable"`
	// Objects says that it is sent Kubernetes' objects, or annotations of pods, if its plugins depend on them: of pods and nodes, all that the API server has. With a cluster that has one.
	Objects bool `json:"objects,omitempty"`
	// Annotations are the prefixes of annotations that its plugins may choose for pods, which Berth writes with the bind: none by default, 16 at most. None is kubernetes.io or k8s.io, or below these.
	Annotations []string `json:"annotations,omitempty"`
	// TLS is how both sides prove who they are. Nil: plaintext, which leaves the machine only if Insecure.
	TLS *PluginTLS `json:"tls,omitempty"`
	// Insecure says that plaintext to another machine is meant.
	Insecure bool `json:"insecure,omitempty"`
}

// PluginRun is how Berth runs a plugin service itself.
type PluginRun struct {
	// Command is the program, by an absolute path, and its arguments. Nobody has looked whether there is such a program.
	Command []string `json:"command"`
	// Memory is how many bytes of memory its process may have: 1 MiB at least; 2 GiB if the file does not say.
	Memory int64 `json:"memory,string"`
}

// ServicePlugin is a plugin of a plugin service.
type ServicePlugin struct {
	// Name is what profiles, verdicts and metrics call it: a qualified name as of a label, of no other plugin of any service, nor of kube-scheduler's or Berth's own.
	Name string `json:"name"`
	// Points are where it runs, in any order: one at least of preEnqueue, queueSort, filter, postFilter, score, reserve, permit, preBind, bind and postBind.
	Points []string `json:"points"`
}

// PluginTLS are the files by which Berth and a plugin service prove who they are, and by which name the service does. Nobody has looked whether there are such files.
type PluginTLS struct {
	// CA has the authorities of the service, Cert and Key are what Berth shows it. None of them is empty.
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
	// ServerName is what the service's certificate has to be of; "" means the host of its address. One that is discovered has it.
	ServerName string `json:"serverName,omitempty"`
}

// The only version and kind of a file of plugin services.
const (
	servicesVersion = "berth.dev/v1"
	servicesKind    = "PluginServices"
)

const (
	maxServices       = 32
	maxServicePlugins = 64 // as berth.plugin.v1 says
	servicesTimeout   = time.Second
	maxPrefixes       = 16 // of annotations
	// maxArguments is how many bytes the arguments of all plugins of services may have: they are sent in one request, of at most 16 MiB.
	maxArguments = 1 << 20
	// runMemory is how many bytes of memory a process has that Berth runs, and minRunMemory the fewest that a file may say; maxCommand is how many arguments, and bytes of them, its command may have.
	runMemory       = 2 << 30
	minRunMemory    = 1 << 20
	maxCommand      = 256
	maxCommandBytes = 64 << 10
)

// PreBindTimeout is how long what plugins do before a bind may take unless a configuration says otherwise: as long as VolumeBinding's. MaxPreBindTimeout is the most that one may say, and MaxPluginTimeout
// that of all else.
const (
	PreBindTimeout    = 10 * time.Minute
	MaxPreBindTimeout = time.Hour
	MaxPluginTimeout  = time.Minute
)

// servicePoints are the points that a plugin of a service can have.
var servicePoints = []string{"preEnqueue", "queueSort", "filter", "postFilter", "score", "reserve", "permit", "preBind", "bind", "postBind"}

// servicesFile is a file of plugin services.
type servicesFile struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Services   []writtenService `json:"services"`
}

// writtenService is a PluginService as it is written.
type writtenService struct {
	PluginService
	Timeout        *string     `json:"timeout"` // nil: it is not said
	PreBindTimeout *string     `json:"preBindTimeout"`
	Run            *writtenRun `json:"run"`
}

// writtenRun is a PluginRun as it is written.
type writtenRun struct {
	Command []string `json:"command"`
	Memory  *string  `json:"memory"` // nil: it is not said
}

// DecodePluginServices returns the services of a file in YAML or JSON, with their defaults. The error names every field that is wrong, but for those behind the
// first hundred.
func DecodePluginServices(data []byte) ([]PluginService, error) {
	written, err := decodeServices(data)
	if err != nil {
		return nil, fmt.Errorf("decode plugin services: %w", err)
	}
	services, err := checkServices(written)
	if err != nil {
		return nil, fmt.Errorf("check plugin services: %w", err)
	}
	return services, nil
}

func decodeServices(data []byte) ([]writtenService, error) {
	if err := aliases.Few(data, maxValues); err != nil {
		return nil, err
	}
	if err := aliases.Check(data); err != nil {
		return nil, err
	}
	encoded, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var file servicesFile
	strict, err := strictjson.UnmarshalStrict(encoded, &file)
	switch {
	case err != nil:
		return nil, err
	case file.APIVersion != servicesVersion || file.Kind != servicesKind: // it may be a file of something else
		return nil, fmt.Errorf("want apiVersion: %s and kind: %s, got %q and %q", servicesVersion, servicesKind, file.APIVersion, file.Kind)
	case len(strict) > 0:
		return nil, runtime.NewStrictDecodingError(strict)
	}
	return file.Services, nil
}

// checkServices returns services with their defaults, or what is wrong with them.
func checkServices(written []writtenService) ([]PluginService, error) {
	path := field.NewPath("services")
	if n := len(written); n > maxServices {
		return nil, field.TooMany(path, n, maxServices)
	}
	var out []PluginService
	var errs []error
	names, plugins := make(map[string]bool), make(map[string]bool)
	for i := range written {
		s, at := written[i].PluginService, path.Index(i)
		add := func(list ...*field.Error) {
			for _, err := range list {
				errs = append(errs, err)
			}
		}
		for _, msg := range validation.IsDNS1123Label(s.Name) {
			add(field.Invalid(at.Child("name"), s.Name, msg))
		}
		if s.InProcess {
			add(field.Forbidden(at.Child("inProcess"), "a program has services in its own process that are compiled into it, and no file has any"))
		}
		if names[s.Name] {
			add(field.Duplicate(at.Child("name"), s.Name))
		}
		names[s.Name] = true
		add(checkPlugins(at.Child("plugins"), s.Plugins, plugins)...)
		if run := written[i].Run; run != nil {
			s.Run = &PluginRun{Command: run.Command}
			add(checkRun(at, &s, run.Memory)...)
		} else {
			add(checkConnection(at, &s)...)
		}
		add(checkAnnotations(at.Child("annotations"), s.Annotations)...)
		s.Timeout.Duration, s.PreBindTimeout.Duration = servicesTimeout, PreBindTimeout
		for _, d := range []struct {
			name, want string
			text       *string
			to         *time.Duration
			most       time.Duration
		}{
			{"timeout", "want a duration such as 500ms, above 0 and no more than 60s", written[i].Timeout, &s.Timeout.Duration, MaxPluginTimeout},
			{"preBindTimeout", "want a duration such as 5m, above 0 and no more than 1h", written[i].PreBindTimeout, &s.PreBindTimeout.Duration, MaxPreBindTimeout},
		} {
			if d.text == nil {
				continue
			}
			var err error
			if *d.to, err = time.ParseDuration(*d.text); err != nil || *d.to <= 0 || *d.to > d.most {
				add(field.Invalid(at.Child(d.name), *d.text, d.want))
			}
		}
		out = append(out, s)
	}
	return out, together(errs)
}

// checkPlugins finds what is wrong with the plugins of a service. taken are those of all services before, and gets these.
func checkPlugins(path *field.Path, plugins []ServicePlugin, taken map[string]bool) (errs field.ErrorList) {
	if n := len(plugins); n == 0 {
		return field.ErrorList{field.Required(path, "want at least one, with its name and points")}
	} else if n > maxServicePlugins {
		return field.ErrorList{field.TooMany(path, n, maxServicePlugins)}
	}
	for i, p := range plugins {
		at := path.Index(i)
		for _, msg := range validation.IsQualifiedName(p.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), p.Name, msg))
		}
		switch {
		case engine.PluginOf(p.Name) != nil || removed[p.Name] || p.Name == extender.Plugin:
			errs = append(errs, field.Invalid(at.Child("name"), p.Name, "is the name of a plugin of kube-scheduler's or of Berth's own: want another one"))
		case taken[p.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		taken[p.Name] = true
		if len(p.Points) == 0 {
			errs = append(errs, field.Required(at.Child("points"), "want at least one of "+strings.Join(servicePoints, ", ")))
		}
		for k, point := range p.Points {
			switch {
			case !slices.Contains(servicePoints, point):
				errs = append(errs, field.NotSupported(at.Child("points").Index(k), point, servicePoints))
			case slices.Contains(p.Points[:k], point):
				errs = append(errs, field.Duplicate(at.Child("points").Index(k), point))
			}
		}
	}
	return errs
}

// checkAnnotations finds what is wrong with the prefixes of annotations that a service may choose.
func checkAnnotations(path *field.Path, prefixes []string) (errs field.ErrorList) {
	if n := len(prefixes); n > maxPrefixes {
		return field.ErrorList{field.TooMany(path, n, maxPrefixes)}
	}
	for i, prefix := range prefixes {
		if err := annotations.Check(map[string]string{prefix + "/x": ""}); err != nil || strings.Contains(prefix, "/") {
			errs = append(errs, field.Invalid(path.Index(i), prefix, "want what comes before the slash of names of annotations, such as example.com, and neither kubernetes.io or k8s.io nor one below these"))
		}
	}
	return errs
}

// checkConnection finds what is wrong with where a service is, and with how it is talked to.
func checkConnection(at *field.Path, s *PluginService) (errs field.ErrorList) {
	if s.Discovered {
		return checkDiscovered(at, s)
	}
	socket, local := strings.CutPrefix(s.Address, "unix://")
	if local && !strings.HasPrefix(socket, "/") {
		errs = append(errs, field.Invalid(at.Child("address"), s.Address, "want unix:// and an absolute path, such as unix:///run/gpu.sock"))
	}
	if !local {
		host, ok := hostOf(s.Address)
		if !ok {
			return field.ErrorList{field.Invalid(at.Child("address"), s.Address, "want host:port, such as gpu.example:9000, or unix:///path, or discovered: true instead, or run")}
		}
		local = host == "localhost" || net.ParseIP(host).IsLoopback()
	}
	if s.TLS == nil && !local && !s.Insecure {
		errs = append(errs, field.Required(at.Child("tls"), "without it, whoever is on the way to another machine can read and change what is said: want tls, or insecure: true"))
	}
	return append(errs, checkTLS(at, s)...)
}

// checkDiscovered is checkConnection of a service that is discovered. Who may announce addresses is not to decide whom Berth believes: the file does, by a name.
func checkDiscovered(at *field.Path, s *PluginService) (errs field.ErrorList) {
	if s.Address != "" {
		errs = append(errs, field.Forbidden(at.Child("discovered"), "goes with no address: leave one of them out"))
	}
	switch {
	case s.TLS != nil && s.TLS.ServerName == certs.MemberName:
		errs = append(errs, field.Invalid(at.Child("tls", "serverName"), s.TLS.ServerName, "all processes of Berth have it: want a name that only those of the service have"))
	case s.TLS != nil && s.TLS.ServerName == "":
		errs = append(errs, field.Required(at.Child("tls", "serverName"), "addresses that are announced prove nothing: want the name that the certificates of the service's processes are of"))
	case s.TLS == nil && !s.Insecure:
		errs = append(errs, field.Required(at.Child("tls"), "without it, whoever may announce an address in etcd, or is on the way there, decides where pods go: want tls, or insecure: true"))
	}
	return append(errs, checkTLS(at, s)...)
}

// checkRun finds what is wrong with how Berth is to run a service, and fills in how much memory that has.
func checkRun(at *field.Path, s *PluginService, memory *string) (errs field.ErrorList) {
	for _, other := range []struct {
		name  string
		given bool
	}{{"address", s.Address != ""}, {"discovered", s.Discovered}, {"tls", s.TLS != nil}, {"insecure", s.Insecure}} {
		if other.given {
			errs = append(errs, field.Forbidden(at.Child(other.name), "goes with no run: Berth runs the process itself, on a socket that nobody else reaches"))
		}
	}
	at = at.Child("run")
	command, bytes := s.Run.Command, 0
	for i, text := range command {
		if bytes += len(text); strings.ContainsRune(text, 0) {
			errs = append(errs, field.Invalid(at.Child("command").Index(i), text, "has a byte 0"))
		}
	}
	switch {
	case len(command) == 0:
		errs = append(errs, field.Required(at.Child("command"), "want the absolute path of a program, and its arguments"))
	case len(command) > maxCommand:
		errs = append(errs, field.TooMany(at.Child("command"), len(command), maxCommand))
	case bytes > maxCommandBytes:
		errs = append(errs, field.TooLong(at.Child("command"), "", maxCommandBytes))
	case !filepath.IsAbs(command[0]):
		errs = append(errs, field.Invalid(at.Child("command").Index(0), command[0], "want the absolute path of a program"))
	}
	if s.Run.Memory = runMemory; memory != nil {
		var err error
		if s.Run.Memory, err = memoryOf(*memory); err != nil {
			errs = append(errs, field.Invalid(at.Child("memory"), *memory, err.Error()))
		}
	}
	return errs
}

// writtenMemory are quantities that are quick to parse: those with an exponent may not be.
var writtenMemory = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,3})?(k|Ki|Mi?|Gi?|Ti?)?$`)

// memoryOf returns how many bytes a quantity is.
func memoryOf(text string) (int64, error) {
	if writtenMemory.MatchString(text) {
		if q, err := resource.ParseQuantity(text); err == nil && quantity.Whole(q) >= minRunMemory {
			return quantity.Whole(q), nil
		}
	}
	return 0, errors.New("want a quantity such as 2Gi, and at least 1Mi")
}

// CheckCompiledIn finds what is wrong with services that are compiled into a program, beside those of a file.
func CheckCompiledIn(compiled, services []PluginService) error {
	names, plugins := make(map[string]bool), make(map[string]bool)
	for _, s := range services {
		names[s.Name] = true
		for _, p := range s.Plugins {
			plugins[p.Name] = true
		}
	}
	var errs []error
	for _, s := range compiled {
		at := field.NewPath("compiled-in service " + s.Name)
		list := checkPlugins(at.Child("plugins"), s.Plugins, plugins)
		for _, msg := range validation.IsDNS1123Label(s.Name) {
			list = append(list, field.Invalid(at.Child("name"), s.Name, msg))
		}
		if names[s.Name] {
			list = append(list, field.Duplicate(at.Child("name"), s.Name))
		}
		names[s.Name] = true
		for _, err := range append(list, checkAnnotations(at.Child("annotations"), s.Annotations)...) {
			errs = append(errs, err)
		}
	}
	return together(errs)
}

// checkTLS finds what is wrong with the TLS of a service, if it has any.
func checkTLS(at *field.Path, s *PluginService) (errs field.ErrorList) {
	switch {
	case s.TLS != nil && s.Insecure:
		errs = append(errs, field.Forbidden(at.Child("insecure"), "goes with no tls: leave one of them out"))
	case s.TLS != nil:
		for _, file := range []struct{ name, is string }{{"ca", s.TLS.CA}, {"cert", s.TLS.Cert}, {"key", s.TLS.Key}} {
			if file.is == "" {
				errs = append(errs, field.Required(at.Child("tls", file.name), "ca, cert and key go together: want a file each, or no tls"))
			}
		}
	}
	return errs
}

// hostOf returns the host of host:port, and whether it is one with a port that can be connected to.
func hostOf(address string) (string, bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "", false
	}
	if u, err := url.Parse("//" + address); err != nil || u.Host != address {
		return "", false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return host, err == nil && n > 0
}

// PluginsOf returns the plugins that services have, and the points of each: what [Options] has to say of them.
func PluginsOf(services []PluginService) map[string][]string {
	out := make(map[string][]string)
	for _, s := range services {
		for _, p := range s.Plugins {
			out[p.Name] = p.Points
		}
	}
	return out
}

// Unused says of each service of which no profile has a plugin that it is of no use. steps are those of profiles, by scheduler name.
func Unused(services []PluginService, profiles []cluster.Profile, steps map[string]Steps) (notes []string) {
	used := foreign(profiles)
	if used == nil {
		used = make(map[string][]string)
	}
	for _, s := range steps {
		for _, name := range slices.Concat(s.Reserve, s.Permit, s.PreBind, s.Bind, s.PostBind) {
			used[name] = servicePoints
		}
	}
	for _, s := range services {
		if !slices.ContainsFunc(s.Plugins, func(p ServicePlugin) bool { return used[p.Name] != nil }) {
			notes = append(notes, fmt.Sprintf("the plugin service %s is not used: no profile enables a plugin of it", s.Name))
		}
	}
	return notes
}

// foreign returns the plugins that profiles have and Berth has not: those of services. Profiles do not say at which points they could run,
// so it is all, but that of who sorts the queue.
func foreign(profiles []cluster.Profile) (out map[string][]string) {
	unsorted := slices.DeleteFunc(slices.Clone(servicePoints), func(point string) bool { return point == "queueSort" })
	add := func(name string) {
		if engine.PluginOf(name) != nil {
			return
		}
		if out == nil {
			out = make(map[string][]string)
		}
		out[name] = unsorted
	}
	for i := range profiles {
		for _, name := range profiles[i].Filters {
			add(name)
		}
		for _, w := range profiles[i].Weights {
			add(w.Name)
		}
		for _, name := range slices.Concat(profiles[i].PostFilters, profiles[i].PreEnqueues) {
			add(name)
		}
		if name := profiles[i].QueueSort; name != "" {
			add(name)
			out[name] = servicePoints
		}
	}
	return out
}

// Steps are the plugins of services, and those that are compiled in, that a profile has between the choice of a node and the bind, by point, in order.
type Steps struct {
	Reserve, Permit, PreBind, PostBind []string
	// Bind are those that bind, before kube-scheduler's own, which is Berth itself, and BindsRest is that that comes behind them.
	Bind      []string
	BindsRest bool
}

// stepsOf returns the steps that a profile has plugins of services and such as are compiled in take, false if there are none.
func (o Options) stepsOf(r resolved) (out Steps, any bool) {
	of := func(point string) []string { return o.foreignAt(r, point) }
	out = Steps{Reserve: of("reserve"), Permit: of("permit"), PreBind: of("preBind"), PostBind: of("postBind")}
	out.Bind = of("bind")
	if k := slices.Index(r.at["bind"], theOneAt("bind")); k >= 0 {
		out.Bind, out.BindsRest = out.Bind[:k], k > 0 // whoever comes behind is never asked
	}
	return out, len(out.Reserve)+len(out.Permit)+len(out.PreBind)+len(out.PostBind)+len(out.Bind) > 0
}

// foreignAt returns the plugins of services, and those that are compiled in, that run at a point, in order.
func (o Options) foreignAt(r resolved, point string) (out []string) {
	for _, name := range r.at[point] {
		if o.Plugins[name] != nil || o.CompiledIn[name] != nil {
			out = append(out, name)
		}
	}
	return out
}

// queueSortOf returns the plugin of others that sorts the queue, "" if it is Berth's own.
func (o Options) queueSortOf(r resolved) string {
	if others := o.foreignAt(r, "queueSort"); len(others) == 1 {
		return others[0]
	}
	return ""
}

// Arguments are those of plugins of services, in JSON, by scheduler name and plugin. One that is given none is not there.
type Arguments map[string]map[string]json.RawMessage

// check returns an error if there is more of them than can be sent.
func (a Arguments) check() error {
	size := 0
	for _, of := range a {
		for _, args := range of {
			size += len(args)
		}
	}
	if size > maxArguments {
		return field.Invalid(field.NewPath("profiles"), size, fmt.Sprintf("so many bytes are args of plugins of services, in all pluginConfigs: at most %d are possible", maxArguments))
	}
	return nil
}

// argumentsOf returns the arguments that a profile has for plugins of services.
func (o Options) argumentsOf(p *configv1.KubeSchedulerProfile) map[string]json.RawMessage {
	out := make(map[string]json.RawMessage)
	for _, c := range p.PluginConfig {
		if o.Plugins[c.Name] != nil && c.Args.Raw != nil {
			out[c.Name] = c.Args.Raw
		}
	}
	return out
}
