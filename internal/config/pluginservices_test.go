package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
)

const servicesHeader = "apiVersion: berth.dev/v1\nkind: PluginServices\n"

const fullServices = servicesHeader + `
services:
- name: gpu
  address: gpu.example:9000
  plugins:
  - name: GPUModel
    points: [filter, score]
  - {name: example.com/Licences, points: [filter, reserve, permit, preBind, postBind]}
  timeout: 250ms
  preBindTimeout: 1h
  ignorable: true
  tls: {ca: ca.pem, cert: berth.pem, key: berth.key, serverName: gpu.internal}
- name: price
  address: unix:///run/price.sock
  plugins: [{name: Price, points: [score]}]
- name: remote
  address: 192.0.2.1:9000
  insecure: true
  timeout: 60s
  plugins: [{name: Remote, points: [score, filter]}]
`

func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

func TestAFileOfPluginServicesIsReadWhole(t *testing.T) {
	got, err := config.DecodePluginServices([]byte(fullServices))
	if err != nil {
		t.Fatal(err)
	}
	want := []config.PluginService{
		{
			Name: "gpu", Address: "gpu.example:9000", Timeout: duration(250 * time.Millisecond), PreBindTimeout: duration(time.Hour), Ignorable: true,
			Plugins: []config.ServicePlugin{{Name: "GPUModel", Points: []string{"filter", "score"}}, {Name: "example.com/Licences", Points: []string{"filter", "reserve", "permit", "preBind", "postBind"}}},
			TLS:     &config.PluginTLS{CA: "ca.pem", Cert: "berth.pem", Key: "berth.key", ServerName: "gpu.internal"},
		},
		{Name: "price", Address: "unix:///run/price.sock", Timeout: duration(time.Second), PreBindTimeout: duration(10 * time.Minute), Plugins: []config.ServicePlugin{{Name: "Price", Points: []string{"score"}}}},
		{Name: "remote", Address: "192.0.2.1:9000", Timeout: duration(time.Minute), PreBindTimeout: duration(10 * time.Minute), Insecure: true, Plugins: []config.ServicePlugin{{Name: "Remote", Points: []string{"score", "filter"}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

func TestAServiceIsDiscoveredByTheNameThatItsProcessesHave(t *testing.T) {
	got, err := config.DecodePluginServices([]byte(service("discovered: true, tls: {ca: ca.pem, cert: berth.pem, key: berth.key, serverName: gpu.internal}")))
	if err != nil {
		t.Fatal(err)
	}
	want := []config.PluginService{{
		Name: "a", Discovered: true, Timeout: duration(time.Second), PreBindTimeout: duration(10 * time.Minute), Plugins: []config.ServicePlugin{{Name: "A", Points: []string{"score"}}},
		TLS: &config.PluginTLS{CA: "ca.pem", Cert: "berth.pem", Key: "berth.key", ServerName: "gpu.internal"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

func TestAServiceThatBerthRunsSaysHow(t *testing.T) {
	got, err := config.DecodePluginServices([]byte(servicesHeader + `services:
- {name: a, run: {command: [/bin/gpu, --all], memory: 1.5Gi}, plugins: [{name: A, points: [score]}]}
- {name: b, run: {command: [/bin/gpu]}, plugins: [{name: B, points: [score]}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	of := func(name, plugin string, run config.PluginRun) config.PluginService {
		return config.PluginService{Name: name, Run: &run, Timeout: duration(time.Second), PreBindTimeout: duration(10 * time.Minute), Plugins: []config.ServicePlugin{{Name: plugin, Points: []string{"score"}}}}
	}
	want := []config.PluginService{
		of("a", "A", config.PluginRun{Command: []string{"/bin/gpu", "--all"}, Memory: 3 << 29}), of("b", "B", config.PluginRun{Command: []string{"/bin/gpu"}, Memory: 2 << 30}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

func TestCompiledInServicesAreCheckedAsThoseOfAFileAre(t *testing.T) {
	file, err := config.DecodePluginServices([]byte(plugins("[{name: A, points: [score]}]")))
	if err != nil {
		t.Fatal(err)
	}
	of := func(name, plugin string, annotations ...string) config.PluginService {
		return config.PluginService{Name: name, Annotations: annotations, Plugins: []config.ServicePlugin{{Name: plugin, Points: []string{"filter"}}}}
	}
	for name, tt := range map[string]struct {
		compiled []config.PluginService
		want     string // "": nothing
	}{
		"others":                 {[]config.PluginService{of("b", "B", "example.com"), of("c", "C")}, ""},
		"a service of the file":  {[]config.PluginService{of("a", "B")}, `compiled-in service a.name: Duplicate value: "a"`},
		"a plugin of the file":   {[]config.PluginService{of("b", "A")}, `compiled-in service b.plugins[0].name: Duplicate value: "A"`},
		"a plugin twice":         {[]config.PluginService{of("b", "B"), of("c", "B")}, `compiled-in service c.plugins[0].name: Duplicate value: "B"`},
		"a plugin of Berth's":    {[]config.PluginService{of("b", "ImageLocality")}, "is the name of a plugin of kube-scheduler's or of Berth's own"},
		"no name":                {[]config.PluginService{of("B_", "B")}, `.name: Invalid value: "B_": a lowercase RFC 1123 label`},
		"Kubernetes' annotation": {[]config.PluginService{of("b", "B", "kubernetes.io")}, "compiled-in service b.annotations[0]: Invalid value"},
	} {
		if err := config.CheckCompiledIn(tt.compiled, file); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// service is a file of one service that says so besides its name and plugin.
func service(fields string) string {
	return servicesHeader + "services: [{name: a, plugins: [{name: A, points: [score]}], " + fields + "}]"
}

// plugins is a file of one service with these.
func plugins(list string) string {
	return servicesHeader + "services: [{name: a, address: 'unix:///a', plugins: " + list + "}]"
}

// many is a list of so many entries, each of its number.
func many(entry string, n int) string {
	var entries []string
	for i := range n {
		entries = append(entries, fmt.Sprintf(entry, i))
	}
	return "[" + strings.Join(entries, ",") + "]"
}

func TestWhatIsWrongWithPluginServicesIsNamed(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"nothing", "", `decode plugin services: want apiVersion: berth.dev/v1 and kind: PluginServices, got "" and ""`},
		{"another version", "apiVersion: berth.dev/v2\nkind: PluginServices", `want apiVersion: berth.dev/v1 and kind: PluginServices, got "berth.dev/v2" and "PluginServices"`},
		{"another kind", "apiVersion: berth.dev/v1\nkind: Plugins", `got "berth.dev/v1" and "Plugins"`},
		{"a configuration", header + "profiles: []", `got "kubescheduler.config.k8s.io/v1" and "KubeSchedulerConfiguration"`},
		{"no list", servicesHeader + "services: {}", "cannot unmarshal object into Go struct field servicesFile.services"},
		{"an unknown field", servicesHeader + "service: []", `strict decoding error: unknown field "service"`},
		{"an unknown field of a service", service("adress: b"), `strict decoding error: unknown field "services[0].adress"`},
		{"an unknown field of a plugin", plugins("[{name: A, point: [score]}]"), `unknown field "services[0].plugins[0].point"`},
		{"an unknown field of tls", service("tls: {CA: b}"), `unknown field "services[0].tls.CA"`},
		{"another case", service("Address: b"), `unknown field "services[0].Address"`},
		{"given twice", service("address: 'unix:///a', address: 'unix:///b'"), `key "address" already set in map`},
		{"aliases", servicesHeader + "services: &a [*a]", "stands for itself"},

		{"no name", servicesHeader + "services: [{address: 'unix:///a', plugins: [{name: A, points: [score]}]}]", `services[0].name: Invalid value: "": a lowercase RFC 1123 label must consist of`},
		{"a name that is no label", servicesHeader + "services: [{name: a.b, address: 'unix:///a', plugins: [{name: A, points: [score]}]}]", `services[0].name: Invalid value: "a.b": `},
		{"a name twice", servicesHeader + "services: [{name: a, address: 'unix:///a', plugins: [{name: A, points: [score]}]}, {name: a, address: 'unix:///a', plugins: [{name: B, points: [score]}]}]", `services[1].name: Duplicate value: "a"`},

		{"no address", service("ignorable: true"), `services[0].address: Invalid value: "": want host:port, such as gpu.example:9000, or unix:///path, or discovered: true instead`},
		{"no address, and not discovered", service("discovered: false, insecure: true"), `services[0].address: Invalid value: "": want host:port`},
		{"an address, and discovered", service("address: 'gpu.example:9000', discovered: true, tls: {ca: a, cert: b, key: c, serverName: d}"), `services[0].discovered: Forbidden: goes with no address: leave one of them out`},
		{"a socket, and discovered", service("address: 'unix:///a', discovered: true, insecure: true"), `services[0].discovered: Forbidden`},
		{"discovered, in plaintext", service("discovered: true"), `services[0].tls: Required value: without it, whoever may announce an address in etcd, or is on the way there, decides where pods go: want tls, or insecure: true`},
		{"discovered, by no name", service("discovered: true, tls: {ca: a, cert: b, key: c}"), `services[0].tls.serverName: Required value: addresses that are announced prove nothing`},
		{"discovered, with half of TLS", service("discovered: true, tls: {ca: a, cert: b, serverName: d}"), `services[0].tls.key: Required value: ca, cert and key go together`},
		{"discovered, with TLS and without", service("discovered: true, insecure: true, tls: {ca: a, cert: b, key: c, serverName: d}"), `services[0].insecure: Forbidden: goes with no tls`},
		{"discovered, as a word", service("discovered: maybe, insecure: true"), "discovered of type bool"},
		{"no port", service("address: localhost"), `services[0].address: Invalid value: "localhost": want host:port`},
		{"port 0", service("address: 'localhost:0'"), "services[0].address: Invalid value"},
		{"a port that is none", service("address: 'localhost:65536'"), "services[0].address: Invalid value"},
		{"a port by name", service("address: 'localhost:grpc'"), "services[0].address: Invalid value"},
		{"no host", service("address: ':9000', insecure: true"), "services[0].address: Invalid value"},
		{"a URL", service("address: 'http://localhost:9000'"), "services[0].address: Invalid value"},
		{"a resolver", service("address: 'dns:///localhost:9000'"), "services[0].address: Invalid value"},
		{"a path", service("address: 'localhost/a:9000'"), "services[0].address: Invalid value"},
		{"a space", service("address: 'local host:9000'"), "services[0].address: Invalid value"},
		{"a relative socket", service("address: 'unix://a.sock'"), `services[0].address: Invalid value: "unix://a.sock": want unix:// and an absolute path`},
		{"a socket of another form", service("address: 'unix:/a.sock'"), "services[0].address: Invalid value"},

		{"plaintext", service("address: 'gpu.example:9000'"), "services[0].tls: Required value: without it, whoever is on the way to another machine can read and change what is said: want tls, or insecure: true"},
		{"plaintext to an address", service("address: '192.0.2.1:9000', insecure: false"), "services[0].tls: Required value"},
		{"plaintext to a name like the loopback's", service("address: 'localhost.example:9000'"), "services[0].tls: Required value"},
		{"both", service("address: 'b:1', insecure: true, tls: {ca: a, cert: b, key: c}"), "services[0].insecure: Forbidden: goes with no tls"},
		{"no key", service("address: 'b:1', tls: {ca: a, cert: b}"), "services[0].tls.key: Required value: ca, cert and key go together"},
		{"no cert", service("address: 'b:1', tls: {ca: a, key: b}"), "services[0].tls.cert: Required value: ca, cert and key go together"},
		{"no ca", service("address: 'b:1', tls: {cert: a, key: b}"), "services[0].tls.ca: Required value: ca, cert and key go together"},
		{"an empty tls", service("address: 'localhost:1', tls: {}"), "services[0].tls.ca: Required value"},

		{"run, and an address", service("run: {command: [/p]}, address: 'unix:///a'"), `services[0].address: Forbidden: goes with no run: Berth runs the process itself, on a socket that nobody else reaches`},
		{"in the process of nobody", service("address: 'unix:///a', inProcess: true"), "services[0].inProcess: Forbidden: a program has services in its own process that are compiled into it"},
		{"run, and discovered", service("run: {command: [/p]}, discovered: true"), "services[0].discovered: Forbidden: goes with no run"},
		{"run, with TLS", service("run: {command: [/p]}, tls: {ca: a, cert: b, key: c}"), "services[0].tls: Forbidden: goes with no run"},
		{"run, in plaintext", service("run: {command: [/p]}, insecure: true"), "services[0].insecure: Forbidden: goes with no run"},
		{"run, without a command", service("run: {}"), "services[0].run.command: Required value: want the absolute path of a program, and its arguments"},
		{"run, with an empty command", service("run: {command: []}"), "services[0].run.command: Required value"},
		{"run, with an empty program", service("run: {command: ['', a]}"), `services[0].run.command[0]: Invalid value: "": want the absolute path`},
		{"run, by a relative path", service("run: {command: [./gpu]}"), `services[0].run.command[0]: Invalid value: "./gpu": want the absolute path of a program`},
		{"run, with a byte 0", service(`run: {command: [/p, "a\0b"]}`), `services[0].run.command[1]: Invalid value: "a\x00b": has a byte 0`},
		{"run, with many arguments", service("run: {command: [" + strings.Repeat("/p, ", 256) + "/p]}"), "services[0].run.command: Too many: 257: must have at most 256 items"},
		{"run, with long arguments", service("run: {command: [/p, " + strings.Repeat("a", 64<<10) + "]}"), "services[0].run.command: Too long"},
		{"run, with no memory", service("run: {command: [/p], memory: ''}"), `services[0].run.memory: Invalid value: "": want a quantity such as 2Gi, and at least 1Mi`},
		{"run, with little memory", service("run: {command: [/p], memory: 1023Ki}"), `services[0].run.memory: Invalid value: "1023Ki"`},
		{"run, with memory that takes long to read", service("run: {command: [/p], memory: '1e-999999999'}"), `services[0].run.memory: Invalid value: "1e-999999999"`},
		{"run, with memory that is a number", service("run: {command: [/p], memory: 5}"), "memory of type string"},
		{"run, with an unknown field", service("run: {command: [/p], user: root}"), `unknown field "services[0].run.user"`},

		{"timeout 0", service("address: 'unix:///a', timeout: 0s"), `services[0].timeout: Invalid value: "0s": want a duration such as 500ms, above 0 and no more than 60s`},
		{"a negative timeout", service("address: 'unix:///a', timeout: -1s"), `services[0].timeout: Invalid value: "-1s"`},
		{"a long timeout", service("address: 'unix:///a', timeout: 61s"), `services[0].timeout: Invalid value: "61s"`},
		{"annotations of Kubernetes' own", service("address: 'unix:///a', annotations: [example.com, node.kubernetes.io]"), `services[0].annotations[1]: Invalid value: "node.kubernetes.io": want what comes before the slash of names of annotations, such as example.com, and neither`},
		{"a whole annotation", service("address: 'unix:///a', annotations: [example.com/cards]"), `services[0].annotations[0]: Invalid value: "example.com/cards"`},
		{"an empty prefix", service("address: 'unix:///a', annotations: ['']"), `services[0].annotations[0]: Invalid value: ""`},
		{"many annotations", service("address: 'unix:///a', annotations: [" + strings.Repeat("example.com, ", 16) + "example.com]"), "services[0].annotations: Too many: 17: must have at most 16 items"},
		{"a long preBindTimeout", service("address: 'unix:///a', preBindTimeout: 61m"), `services[0].preBindTimeout: Invalid value: "61m": want a duration such as 5m, above 0 and no more than 1h`},
		{"no duration", service("address: 'unix:///a', timeout: soon"), `services[0].timeout: Invalid value: "soon"`},
		{"a number", service("address: 'unix:///a', timeout: 5"), "services.timeout of type string"},

		{"no plugins", plugins("[]"), "services[0].plugins: Required value: want at least one, with its name and points"},
		{"a plugin without a name", plugins("[{points: [score]}]"), `services[0].plugins[0].name: Invalid value: "": name part must be non-empty`},
		{"a plugin's name that is none", plugins("[{name: 'a b', points: [score]}]"), `services[0].plugins[0].name: Invalid value: "a b": name part must consist of`},
		{"all plugins", plugins("[{name: '*', points: [score]}]"), `services[0].plugins[0].name: Invalid value: "*"`},
		{"a plugin of kube-scheduler's", plugins("[{name: A, points: [score]}, {name: ImageLocality, points: [score]}]"),
			`services[0].plugins[1].name: Invalid value: "ImageLocality": is the name of a plugin of kube-scheduler's or of Berth's own: want another one`},
		{"one that Berth does not have", plugins("[{name: DynamicResources, points: [score]}]"), `"DynamicResources": is the name of a plugin`},
		{"one that kube-scheduler had", plugins("[{name: EBSLimits, points: [score]}]"), `"EBSLimits": is the name of a plugin`},
		{"that of extenders", plugins("[{name: Extender, points: [score]}]"), `"Extender": is the name of a plugin`},
		{"a plugin twice", plugins("[{name: A, points: [score]}, {name: A, points: [filter]}]"), `services[0].plugins[1].name: Duplicate value: "A"`},
		{"a plugin of two services", servicesHeader + "services: [{name: a, address: 'unix:///a', plugins: [{name: A, points: [score]}]}, {name: b, address: 'unix:///a', plugins: [{name: A, points: [score]}]}]",
			`services[1].plugins[0].name: Duplicate value: "A"`},
		{"no points", plugins("[{name: A}]"), "services[0].plugins[0].points: Required value: want at least one of preEnqueue, queueSort, filter, postFilter, score, reserve, permit, preBind, bind, postBind"},
		{"another point", plugins("[{name: A, points: [score, preScore]}]"), `services[0].plugins[0].points[1]: Unsupported value: "preScore": supported values: "preEnqueue", "queueSort", "filter", "postFilter", "score", "reserve", "permit", "preBind", "bind", "postBind"`},
		{"all points", plugins("[{name: A, points: [multiPoint]}]"), `services[0].plugins[0].points[0]: Unsupported value: "multiPoint"`},
		{"a point twice", plugins("[{name: A, points: [score, filter, score]}]"), `services[0].plugins[0].points[2]: Duplicate value: "score"`},

		{"many services", servicesHeader + "services: " + many("{name: s%[1]d, address: 'unix:///a', plugins: [{name: A%[1]d, points: [score]}]}", 33), "services: Too many: 33: must have at most 32 items"},
		{"many plugins", plugins(many("{name: A%d, points: [score]}", 65)), "services[0].plugins: Too many: 65: must have at most 64 items"},
		{"many errors", plugins(many("{name: A%d, points: [a, b, c, d]}", 64)), "more]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if services, err := config.DecodePluginServices([]byte(tt.file)); err == nil || services != nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, %v\nwant %s", services, err, tt.want)
			}
		})
	}
}

func TestPluginServicesThatAreRightAreTaken(t *testing.T) {
	for name, file := range map[string]string{
		"none":                     servicesHeader,
		"as many as there may be":  servicesHeader + "services: " + many("{name: s%[1]d, address: 'unix:///a', plugins: [{name: A%[1]d, points: [score]}]}", 32),
		"as many plugins":          plugins(many("{name: A%d, points: [score]}", 64)),
		"the loopback by name":     service("address: 'localhost:9000'"),
		"the loopback":             service("address: '127.0.0.2:65535'"),
		"the loopback of IPv6":     service("address: '[::1]:1'"),
		"the loopback, said twice": service("address: '[::1]:1', insecure: true"),
		"another machine":          service("address: '[2001:db8::1]:1', insecure: true"),
		"an address and TLS":       service("address: '192.0.2.1:1', tls: {ca: a, cert: b, key: c}"),
		"a socket and TLS":         service("address: 'unix:///a', tls: {ca: a, cert: b, key: c}"),
		"discovered, with TLS":     service("discovered: true, tls: {ca: a, cert: b, key: c, serverName: d}"),
		"discovered, in plaintext": service("discovered: true, insecure: true"),
		"the shortest time":        service("address: 'unix:///a', timeout: 1ns"),
		"the default time":         service("address: 'unix:///a', timeout: null"),
	} {
		if _, err := config.DecodePluginServices([]byte(file)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// withServices are options with the plugins of fullServices.
func withServices(t *testing.T) config.Options {
	t.Helper()
	services, err := config.DecodePluginServices([]byte(fullServices))
	if err != nil {
		t.Fatal(err)
	}
	return config.Options{Plugins: config.PluginsOf(services)}
}

func TestPluginsOfServicesRunWhereAProfileEnablesThem(t *testing.T) {
	standard := engine.DefaultProfile("default-scheduler")
	without := func(list []string, names ...string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return slices.Contains(names, name) })
	}
	weighed := func(more ...cluster.PluginWeight) []cluster.PluginWeight {
		return slices.Concat(standard.Weights, more)
	}
	for _, tt := range []struct {
		name, plugins string
		filters       []string
		weights       []cluster.PluginWeight
	}{
		{"nowhere", "{}", standard.Filters, standard.Weights},
		{"at a point, behind all others", "{filter: {enabled: [{name: GPUModel}]}}", append(slices.Clone(standard.Filters), "GPUModel"), standard.Weights},
		{"at another point", "{score: {enabled: [{name: Remote}, {name: Price, weight: 7}]}}", standard.Filters, weighed(cluster.PluginWeight{Name: "Remote", Weight: 1}, cluster.PluginWeight{Name: "Price", Weight: 7})},
		{"everywhere is where it runs", "{multiPoint: {enabled: [{name: Price, weight: 2}, {name: GPUModel, weight: 2147483647}, {name: example.com/Licences, weight: 4}]}}",
			append(slices.Clone(standard.Filters), "GPUModel", "example.com/Licences"), weighed(cluster.PluginWeight{Name: "Price", Weight: 2}, cluster.PluginWeight{Name: "GPUModel", Weight: 2147483647})},
		{"at a point and everywhere, before all others", "{multiPoint: {enabled: [{name: GPUModel, weight: 2}, {name: Remote}]}, filter: {enabled: [{name: Remote}, {name: NodeName}]}, score: {enabled: [{name: GPUModel, weight: 5}]}}",
			slices.Concat([]string{"Remote", "NodeName"}, without(standard.Filters, "NodeName"), []string{"GPUModel"}),
			slices.Concat([]cluster.PluginWeight{{Name: "GPUModel", Weight: 5}}, standard.Weights, []cluster.PluginWeight{{Name: "Remote", Weight: 1}})},
		{"everywhere but at a point", "{multiPoint: {enabled: [{name: GPUModel}]}, filter: {disabled: [{name: GPUModel}]}}", standard.Filters, weighed(cluster.PluginWeight{Name: "GPUModel", Weight: 1})},
		{"alone", "{score: {disabled: [{name: '*'}], enabled: [{name: Price}, {name: ImageLocality, weight: 3}]}}", standard.Filters, []cluster.PluginWeight{{Name: "Price", Weight: 1}, {Name: "ImageLocality", Weight: 3}}},
		{"disabled, and not enabled", "{multiPoint: {disabled: [{name: GPUModel}]}, filter: {disabled: [{name: Price}]}}", standard.Filters, standard.Weights},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := completeWith(withServices(t), profile(tt.plugins, ""))
			if err != nil {
				t.Fatal(err)
			}
			want := standard
			want.Filters, want.Weights = tt.filters, tt.weights
			if diff := cmp.Diff([]cluster.Profile{want}, c.Profiles); diff != "" {
				t.Errorf("profiles (-want +got):\n%s", diff)
			}
		})
	}
}

func TestArgumentsOfPluginsOfServicesAreKeptAsJSON(t *testing.T) {
	c, err := completeWith(withServices(t), `
profiles:
- schedulerName: a
  plugins: {filter: {enabled: [{name: GPUModel}]}, score: {enabled: [{name: Price}, {name: Remote}]}}
  pluginConfig:
  - {name: Remote, args: {apiVersion: example.com/v1, kind: RemoteArgs, size: 9007199254740993, deep: [{a: null}]}}
  - {name: GPUModel, args: [1, two]}
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
  - {name: example.com/Licences, args: {of: a plugin that does not run}}
- schedulerName: b
  plugins: {multiPoint: {enabled: [{name: GPUModel}, {name: Price}, {name: Remote}]}}
  pluginConfig: [{name: GPUModel, args: null}, {name: Price}, {name: Remote, args: 3}]
- schedulerName: c
`)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Arguments{
		"a": {"Remote": json.RawMessage(`{"apiVersion":"example.com/v1","deep":[{"a":null}],"kind":"RemoteArgs","size":9007199254740993}`), "GPUModel": json.RawMessage(`[1,"two"]`)},
		"b": {"Remote": json.RawMessage(`3`)},
	}
	if diff := cmp.Diff(want, c.Arguments); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if c.Profiles[0].FitStrategy != cluster.MostAllocated {
		t.Errorf("the arguments of others: %+v", c.Profiles[0])
	}
	written, err := config.Encode(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Decode(written)
	if err != nil {
		t.Fatalf("%v in\n%s", err, written)
	}
	again, err := config.Complete(cfg, withServices(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.Arguments, again.Arguments) + cmp.Diff(c.Profiles, again.Profiles); diff != "" {
		t.Errorf("completed again (-first +again):\n%s", diff)
	}
	if _, err := config.Complete(cfg, config.Options{}); err == nil || !strings.Contains(err.Error(), `"GPUModel": does not exist`) {
		t.Errorf("without the services: %v", err)
	}
}

func TestWhatPluginsOfServicesCannotDoIsNamed(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"filters", profile("{filter: {enabled: [{name: GPUModel}, {name: Price}]}}", ""), `profiles[0].plugins.filter.enabled[1].name: Invalid value: "Price": plugin does not extend FilterPlugin`},
		{"scores", profile("{score: {enabled: [{name: example.com/Licences}]}}", ""), `profiles[0].plugins.score.enabled[0].name: Invalid value: "example.com/Licences": plugin does not extend ScorePlugin`},
		{"filters beforehand", profile("{preFilter: {enabled: [{name: GPUModel}]}}", ""), "profiles[0].plugins.preFilter.enabled[0].name: Invalid value: \"GPUModel\": plugin does not extend PreFilterPlugin"},
		{"permits", profile("{permit: {enabled: [{name: GPUModel}]}}", ""), "plugin does not extend PermitPlugin"},
		{"in another case", profile("{filter: {enabled: [{name: gpuModel}]}}", ""), `profiles[0].plugins.filter.enabled[0].name: Invalid value: "gpuModel": does not exist: Berth has no plugin of that name, nor has a service of --plugin-services`},
		{"a service's name", profile("{multiPoint: {enabled: [{name: gpu}]}}", ""), `profiles[0].plugins.multiPoint.enabled[0].name: Invalid value: "gpu": does not exist`},
		{"arguments of nobody", profile("", "[{name: GPUModels, args: {}}]"), `profiles[0].pluginConfig[0].name: Invalid value: "GPUModels": does not exist`},
		{"arguments twice", profile("", "[{name: GPUModel, args: {}}, {name: GPUModel}]"), `profiles[0].pluginConfig[1]: Duplicate value: "GPUModel"`},
		{"twice", profile("{score: {enabled: [{name: GPUModel}, {name: GPUModel, weight: 2}]}}", ""), `profiles[0].plugins.score.enabled[1].name: Duplicate value: "GPUModel"`},
		{"a negative weight", profile("{multiPoint: {enabled: [{name: GPUModel, weight: -1}]}}", ""), "profiles[0].plugins.multiPoint.enabled[0].weight: Invalid value: -1: must not be negative"},
		{"large arguments", profile("{multiPoint: {enabled: [{name: GPUModel}, {name: Price}]}}", fmt.Sprintf("[{name: GPUModel, args: %[1]s}, {name: Price, args: %[1]s}]", strings.Repeat("a", 1<<19))),
			"profiles: Invalid value: 1048580: so many bytes are args of plugins of services, in all pluginConfigs: at most 1048576 are possible"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := completeWith(withServices(t), tt.body); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error: %.300v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestAServiceOfWhichNoProfileHasAPluginIsUnused(t *testing.T) {
	services, err := config.DecodePluginServices([]byte(fullServices))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		body string
		want []string
	}{
		{"", []string{"gpu", "price", "remote"}},
		{profile("{filter: {enabled: [{name: example.com/Licences}]}}", "[{name: Remote, args: {}}]"), []string{"price", "remote"}},
		{profile("{permit: {enabled: [{name: example.com/Licences}]}}", "[]"), []string{"price", "remote"}},
		{"profiles: [{schedulerName: a, plugins: {score: {enabled: [{name: GPUModel}]}}}, {schedulerName: b, plugins: {multiPoint: {enabled: [{name: Price}, {name: Remote}]}}}]", nil},
	} {
		c, err := completeWith(withServices(t), tt.body)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, name := range tt.want {
			want = append(want, "the plugin service "+name+" is not used: no profile enables a plugin of it")
		}
		if diff := cmp.Diff(want, config.Unused(services, c.Profiles, c.Steps)); diff != "" || c.Notes != nil {
			t.Errorf("%s: notes %q (-want +got)\n%s", tt.body, c.Notes, diff)
		}
	}
}

// What profiles have services do between the choice of a node and the bind is told apart from what others have to know of them.
func TestTheStepsOfPluginsOfServices(t *testing.T) {
	for _, tt := range []struct {
		plugins string
		want    map[string]config.Steps
	}{
		{"{filter: {enabled: [{name: GPUModel}]}}", map[string]config.Steps{}},
		{"{permit: {enabled: [{name: example.com/Licences}]}}", map[string]config.Steps{"default-scheduler": {Permit: []string{"example.com/Licences"}}}},
		{"{multiPoint: {enabled: [{name: example.com/Licences}]}, preBind: {disabled: [{name: example.com/Licences}]}}", map[string]config.Steps{"default-scheduler": {
			Reserve: []string{"example.com/Licences"}, Permit: []string{"example.com/Licences"}, PostBind: []string{"example.com/Licences"},
		}}},
	} {
		c, err := completeWith(withServices(t), profile(tt.plugins, "[]"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, c.Steps, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.plugins, diff)
		}
	}
	if _, err := completeWith(withServices(t), profile("{reserve: {enabled: [{name: GPUModel}]}}", "[]")); err == nil || !strings.Contains(err.Error(), "plugin does not extend ReservePlugin") {
		t.Errorf("a point that the plugin does not have: %v", err)
	}
}

// Who may be tried is said by plugins of services where the profile has them at PreEnqueue, in its order; Berth's own are told apart.
func TestPluginsOfServicesSayWhichPodsMayBeTried(t *testing.T) {
	options := config.Options{Plugins: map[string][]string{"Doorman": {"preEnqueue", "filter"}, "Quota": {"preEnqueue"}}}
	for _, tt := range []struct {
		plugins string
		want    []string
	}{
		{"{filter: {enabled: [{name: Doorman}]}}", nil},
		{"{multiPoint: {enabled: [{name: Doorman}, {name: Quota}]}}", []string{"Doorman", "Quota"}},
		{"{multiPoint: {enabled: [{name: Doorman}]}, preEnqueue: {enabled: [{name: Quota}, {name: Doorman}]}}", []string{"Doorman", "Quota"}},
		{"{multiPoint: {enabled: [{name: Doorman}]}, preEnqueue: {disabled: [{name: Doorman}], enabled: [{name: Quota}]}}", []string{"Quota"}},
	} {
		c, err := completeWith(options, profile(tt.plugins, ""))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, c.Profiles[0].PreEnqueues); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.plugins, diff)
		}
	}
	if _, err := completeWith(options, profile("{queueSort: {enabled: [{name: Doorman}]}}", "")); err == nil || !strings.Contains(err.Error(), "plugin does not extend QueueSortPlugin") {
		t.Errorf("a point that a service does not have: %v", err)
	}
}

// Who knows the profiles alone, as gateways do, takes other configurations with the plugins of services that they have.
func TestTheOptionsOfProfilesKnowThePluginsOfServicesThatTheyHave(t *testing.T) {
	c, err := completeWith(withServices(t), profile("{filter: {enabled: [{name: GPUModel}]}, score: {enabled: [{name: Price}]}}", ""))
	if err != nil {
		t.Fatal(err)
	}
	options := config.OptionsOf(c.Profiles)
	if all := []string{"preEnqueue", "filter", "postFilter", "score", "reserve", "permit", "preBind", "bind", "postBind"}; !cmp.Equal(map[string][]string{"GPUModel": all, "Price": all}, options.Plugins) {
		t.Errorf("plugins %v", options.Plugins)
	}
	again, err := completeWith(options, profile("{multiPoint: {enabled: [{name: Price, weight: 9}]}, score: {enabled: [{name: GPUModel}]}}", "[{name: GPUModel, args: {}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if w := again.Profiles[0].Weights; w[len(w)-2].Weight != 9 || w[len(w)-1].Name != "GPUModel" {
		t.Errorf("weights: %v", w)
	}
	if _, err := completeWith(options, profile("{filter: {enabled: [{name: Remote}]}}", "")); err == nil || !strings.Contains(err.Error(), `"Remote": does not exist`) {
		t.Errorf("a plugin that no profile has: %v", err)
	}
}

func TestTheExampleOfAFileOfPluginServicesIsOne(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(apiVersion: berth.dev/v1\n.*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("there is none")
	}
	if services, err := config.DecodePluginServices(example[1]); err != nil || len(services) != 4 || !services[2].Discovered || services[3].Run == nil {
		t.Errorf("%d services, %v", len(services), err)
	}
}
