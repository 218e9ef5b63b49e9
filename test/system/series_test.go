package system

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// metricsAt returns what a process serves at /metrics: the value of each series, by name{labels}.
func metricsAt(t *testing.T, address string) map[string]float64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s, %v", response.Status, err)
	}
	all := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(line, ' ')
		if at <= 0 || line[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64)
		if err != nil {
			t.Fatalf("/metrics: %q: %v", line, err)
		}
		all[line[:at]] = value
	}
	return all
}

// ofTenant returns what one tenant makes, and its pods by their names. Whatever a tenant may name has the tenant's name in it.
func ofTenant(tenant string, priority int) (manifests, pods []string) {
	manifests = []string{fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%[1]s: %[1]s}}}`, tenant)}
	for i, spec := range []string{
		fmt.Sprintf(`priority: %d, priorityClassName: %s, containers: [{name: %[2]s, image: %[2]s}]`, priority, tenant), // it is placed
		fmt.Sprintf(`containers: [{name: c, image: i, resources: {requests: {example.com/%s: "1"}, limits: {example.com/%[1]s: "1"}}}]`, tenant),
		fmt.Sprintf(`nodeSelector: {%s: %[1]s}, priority: %d, containers: [{name: c, image: i}]`, tenant, -priority),
		fmt.Sprintf(`schedulingGates: [{name: example.com/%s}], containers: [{name: c, image: i}]`, tenant),
		fmt.Sprintf(`topologySpreadConstraints: [{topologyKey: %s, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}], containers: [{name: c, image: i}]`, tenant),
		fmt.Sprintf(`affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, namespaces: [%s], labelSelector: {matchLabels: {%[1]s: nobody}}}]}}, containers: [{name: c, image: i}]`, tenant),
		fmt.Sprintf(`volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}], containers: [{name: c, image: i}]`, tenant), // there is no such claim
		fmt.Sprintf(`resourceClaims: [{name: d, resourceClaimName: %s}], containers: [{name: c, image: i}]`, tenant),           // what is not built
		fmt.Sprintf(`schedulerName: %s, containers: [{name: c, image: i}]`, tenant),                                            // a profile that there is not
		`containers: [{name: c, image: i, resources: {requests: {cpu: "7"}}}], priority: 1000`,                                 // it preempts, or would have to
	} {
		name := fmt.Sprintf("%s-%d", tenant, i)
		pods = append(pods, tenant+"/"+name)
		manifests = append(manifests, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {%[2]s: %[2]s}}, spec: {%s}}`, name, tenant, spec))
	}
	return manifests, pods
}

// Whoever stores metrics pays by the series. What tenants name, and how many they are, is in none.
func TestNoNumberOfTenantsMakesMoreSeries(t *testing.T) {
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	ops := "127.0.0.1:" + ports[0]
	b := berthtest.Start(t, berthtest.Options{Nodes: 20, Shards: 2, Queues: 2, OpsListen: ops})
	come := func(tenants []string) {
		t.Helper()
		var all, pods []string
		for i, tenant := range tenants {
			manifests, names := ofTenant(tenant, 1+i)
			all, pods = append(all, manifests...), append(pods, names...)
		}
		b.Apply(all...)
		berthtest.Await(t, berthtest.Patience, "the tenants' pods to be decided", func(context.Context) error {
			have := b.Pods()
			for _, name := range pods {
				switch p := have[name]; {
				case p == nil && !strings.HasSuffix(name, "-8"): // another scheduler's
					return fmt.Errorf("%s is not there", name)
				case p.GetNode() == "" && p.GetMessage() == "" && !strings.HasSuffix(name, "-3") && !strings.HasSuffix(name, "-8"):
					return fmt.Errorf("%s waits: %v", name, p)
				}
			}
			return nil
		})
		// Those who ask may name things too.
		for _, tenant := range tenants {
			err := b.Conn.Invoke(b.Context(), "/berth.scheduling.v1."+tenant+"/"+tenant, &emptypb.Empty{}, &emptypb.Empty{}, grpc.WaitForReady(true))
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("a method that there is not: %v, want UNIMPLEMENTED", err)
			}
			request, err := http.NewRequestWithContext(t.Context(), "LOOK", "http://"+b.HTTPAddress+"/v1/"+tenant+"?"+tenant+"=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode < 400 {
				t.Errorf("a path that there is not: %s", response.Status)
			}
		}
	}

	const first, more = 3, 100
	var tenants []string
	for i := range first + more {
		tenants = append(tenants, fmt.Sprintf("tenant-%03d", i))
	}
	come(tenants[:first])
	before := slices.Sorted(maps.Keys(metricsAt(t, ops)))
	if len(before) < 500 {
		t.Fatalf("there are %d series: is that all roles'?", len(before))
	}
	come(tenants[first:])
	after := slices.Sorted(maps.Keys(metricsAt(t, ops)))

	for _, s := range after {
		if strings.Contains(s, "tenant") {
			t.Errorf("a tenant has named the series %s", s)
		}
	}
	// Some tell of what happens by chance only, as that an answer was late, and may not have come with the first tenants: fixed words, a handful.
	// A histogram is a series a bucket, of which one that a tenant could make would have made a hundred times a dozen.
	const byChance = 20
	added := slices.DeleteFunc(slices.Clone(after), func(s string) bool {
		_, found := slices.BinarySearch(before, s)
		return found || strings.Contains(s, "_bucket{") || strings.Contains(s, "_sum{")
	})
	if len(added) > byChance {
		t.Errorf("%d tenants more have made %d series more:\n%s", more, len(added), strings.Join(added, "\n"))
	}
	t.Logf("%d series, and %d after %d tenants more: %d but for buckets: %q", len(before), len(after), more, len(added), added)
}
