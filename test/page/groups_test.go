package page

import (
	"fmt"
	"strings"
	"testing"
)

// gang is the manifest of a PodGroup that wants so many pods, all in one zone, and those of its pods.
func gang(namespace, name string, pods int, requests string) []string {
	all := []string{fmt.Sprintf("apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {namespace: %s, name: %s}\n"+
		"spec: {schedulingPolicy: {gang: {minCount: %d}}, schedulingConstraints: {topology: [{key: topology.kubernetes.io/zone}]}}\n", namespace, name, pods)}
	for k := range pods {
		all = append(all, pod(namespace, fmt.Sprintf("%s-%d", name, k), 0, requests, "schedulingGroup: {podGroupName: "+name+"}"))
	}
	return all
}

// TestGangsAreShown has one that is placed, in the zone that it fills, and one that waits, of which two of three pods fit in the other.
func TestGangsAreShown(t *testing.T) {
	b := start(t, t.TempDir(), "127.0.0.1:0")
	manifests := []string{node("a-1", "zone-a", 0, false), node("a-2", "zone-a", 0, false), node("b-1", "zone-b", 0, false)}
	manifests = append(manifests, gang("ml", "there", 2, "cpu: 8")...)
	if err := b.apply(manifests...); err != nil {
		t.Fatal(err)
	}
	if err := b.settle(0); err != nil {
		t.Fatal(err)
	}
	if err := b.apply(gang("ml", "waits", 3, "cpu: 12")...); err != nil {
		t.Fatal(err)
	}
	if err := b.settle(3); err != nil {
		t.Fatal(err)
	}
	const missing, help = "The next of its pods: 0/3 nodes are available: 3 Insufficient cpu.", "It would fit with 1 more node like a-1, or a minCount of 2."

	// 1. Those that wait, each once.
	p := open(t, b.http, "#/pods")
	p.await("the gang that waits", text("groups")+`.includes("2 of at least 3 pods fit now, in zone-a.")`)
	said := get[string](p, text("groups"))
	for _, want := range []string{"ml/waits 3 pods wait", missing, help} {
		if !strings.Contains(said, want) {
			t.Errorf("of the gangs that wait it is not said %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "ml/there") || get[int](p, `document.querySelectorAll("#groups li").length`) != 1 {
		t.Errorf("shown as gangs that wait:\n%s", said)
	}

	// 2. The gang with its pods, and from one of them back to it.
	p.click(`#groups a[href="#/groups/ml/waits"]`)
	p.await("the gang", `document.querySelector("#explanation .cause")?.innerText === "PodGroup ml/waits: 2 of at least 3 pods fit now, in zone-a."`)
	p.await("its pods", `document.querySelectorAll("#explanation tbody tr").length === 3`)
	p.click(`#explanation a[href="#/pods/ml/waits-1"]`)
	p.await("its pod", `document.querySelector("#explanation .cause")?.innerText.startsWith("ml/waits-1 is pending with its PodGroup")`)
	p.await("the gang of the pod", text("explanation")+fmt.Sprintf(`.includes("ml/waits 2 of at least 3 pods fit now, in zone-a.") && %s.includes(%q)`, text("explanation"), help))
	p.await("a way back", `document.querySelector('#explanation a[href="#/groups/ml/waits"]')`)

	// 3. One that is placed, and how many more like it fit: two in the zone of two nodes.
	p.visit("pods/ml/there-0", text("explanation")+`.includes("ml/there 2 of 2 pods are placed, in zone-b.")`)
	p.click(`#explanation a[href="#/groups/ml/there"]`)
	p.await("the gang that is placed", text("explanation")+`.includes("PodGroup ml/there: 2 of 2 pods are placed, in zone-b.")`)
	p.click(`#explanation a[href="#/capacity/podgroup/ml/there"]`)
	p.await("how many more", text("outcome")+`.includes("2 more of PodGroup there fit, with 2 pods each.")`)
	if got := get[string](p, `document.querySelector("#outcome tbody tr").innerText`); got != "zone-a\t2" {
		t.Errorf("they fit in %q, want zone-a", got)
	}

	// 4. When there is room, it is shown no more.
	if err := b.apply(node("a-3", "zone-a", 0, false)); err != nil {
		t.Fatal(err)
	}
	if err := b.settle(0); err != nil {
		t.Fatal(err)
	}
	p.visit("pods", `document.getElementById("groups-section").hidden && `+text("pending")+`.includes("every pod is placed")`)
}
