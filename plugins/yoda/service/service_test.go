package service

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/plugins/yoda"
	"github.com/berth-scheduler/berth/plugins/yoda/keeper"
)

// asked is a service that is asked as Berth does.
type asked struct {
	t      *testing.T
	cards  *keeper.Cards
	synced chan struct{}
	woken  chan string
	client pluginv1.PluginServiceClient

	judge pluginv1.PluginService_JudgeClient
	place pluginv1.PluginService_PlaceClient
	last  struct{ judge, place, kind int64 }
	nodes map[string]int32

	hypothetical bool
}

// ask serves the plugins, with nodes of which each has one card, as their collectors tell.
func ask(t *testing.T, nodes ...string) *asked {
	t.Helper()
	a := &asked{t: t, cards: keeper.New(), synced: make(chan struct{}), woken: make(chan string, 100), nodes: make(map[string]int32)}
	for _, node := range nodes {
		a.cards.SetNode(node, yoda.Facts{})
		a.tell(node, func(*v1alpha1.Card) {})
	}
	close(a.synced)
	a.serve()
	return a
}

// tell has the collector of a node tell of its only card.
func (a *asked) tell(node string, change func(*v1alpha1.Card)) {
	c := v1alpha1.Card{
		ID: "GPU-" + node, Model: "A", Health: v1alpha1.Healthy, TotalMemoryMiB: 16000, FreeMemoryMiB: 16000, ClockMHz: 5000, CoreMHz: 1500, BandwidthMBps: 12000, PowerWatts: 250,
	}
	change(&c)
	a.cards.SetStatus(node, &v1alpha1.Status{Heartbeat: metav1.NowMicro(), HeartbeatSeconds: 3600, Cards: []v1alpha1.Card{c}}, time.Now())
}

func (a *asked) serve() {
	a.t.Helper()
	address := "unix://" + filepath.Join(a.t.TempDir(), "s")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- plugin.Serve(ctx, plugin.Config{Listen: address, Plugins: Plugins(a.cards, a.synced, func(uids ...string) {
			for _, uid := range uids {
				a.woken <- uid
			}
		})})
	}()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-served; err != nil {
			a.t.Error(err)
		}
	})
	a.client = pluginv1.NewPluginServiceClient(conn)
}

// profiles are two: of one, Yoda has arguments.
var profiles = []*pluginv1.Profile{
	{SchedulerName: "default-scheduler"},
	{SchedulerName: "levels", Arguments: []*pluginv1.PluginArguments{{Plugin: Yoda, Json: []byte(`{"levels":[{"model":"A","level":"High"}]}`)}}},
}

// onNode is a pod that Berth has placed on a node.
type onNode struct {
	uid          string
	labels       map[string]string
	hypothetical bool
}

// question asks about pods of a kind on all nodes, with pods on the first of them, and returns of each node why it is refused, "" if it is not, and what each plugin scores it.
func (a *asked) question(profile string, labels, annotations map[string]string, there ...onNode) (refusals []string, scores map[string][]int32) {
	a.t.Helper()
	request := &pluginv1.JudgeRequest{TellsAnnotations: true}
	if a.judge == nil {
		stream, err := a.client.Judge(a.t.Context())
		if err != nil {
			a.t.Fatal(err)
		}
		a.judge, request.Profiles, request.Hypothetical = stream, profiles, a.hypothetical
	}
	a.last.judge++
	request.Id = a.last.judge
	kind := func(labels, annotations map[string]string) int32 {
		a.last.kind++
		request.Kinds = append(request.Kinds, &pluginv1.Kind{Id: int32(a.last.kind), Namespace: "ns", Labels: labels, SchedulerName: profile, Annotations: annotations})
		return int32(a.last.kind)
	}
	q := &pluginv1.Question{Kind: kind(labels, annotations), Filters: []string{Yoda}}
	for _, f := range []yoda.Feature{yoda.Clock, yoda.TotalMemory, yoda.Actual} {
		q.Scores = append(q.Scores, Yoda+f.String())
	}
	for i, node := range []string{"a", "b"} {
		told := &pluginv1.Node{Id: int32(a.last.kind)*10 + int32(i), Spec: &pluginv1.NodeSpec{Name: node}}
		for _, p := range there {
			if i == 0 {
				told.Added = append(told.Added, &pluginv1.PlacedPod{Uid: p.uid, Name: p.uid, Kind: kind(p.labels, nil), Hypothetical: p.hypothetical})
			}
		}
		request.Nodes, q.Nodes = append(request.Nodes, told), append(q.Nodes, told.GetId())
	}
	request.Questions = []*pluginv1.Question{q}
	if err := a.judge.Send(request); err != nil {
		a.t.Fatal(err)
	}
	response, err := a.judge.Recv()
	if err != nil {
		a.t.Fatal(err)
	}
	answer := response.GetAnswers()[0]
	if answer.GetError() != "" {
		a.t.Fatal(answer.GetError())
	}
	refusals, scores = make([]string, len(q.Nodes)), make(map[string][]int32)
	for i, v := range answer.GetVerdicts() {
		if v != 0 {
			refusals[i] = answer.GetRefusals()[v-1].GetReason()
		}
	}
	for k, s := range answer.GetScores() {
		scores[strings.TrimPrefix(q.Scores[k], Yoda)] = s.GetScores()
	}
	return refusals, scores
}

// step has Yoda take a step of a pod that goes to node a.
func (a *asked) step(step pluginv1.Step, uid string, labels map[string]string, stands map[string]string) *pluginv1.PlaceResponse {
	a.t.Helper()
	return a.stepOf(step, uid, labels, nil, stands)
}

// stepOf is step of a pod with annotations.
func (a *asked) stepOf(step pluginv1.Step, uid string, labels, annotations, stands map[string]string) *pluginv1.PlaceResponse {
	a.t.Helper()
	if a.place == nil {
		stream, err := a.client.Place(a.t.Context())
		if err != nil {
			a.t.Fatal(err)
		}
		a.place = stream
		a.last.place = 1
		if err := stream.Send(&pluginv1.PlaceRequest{Id: 1, Profiles: profiles, HearsAnnotations: true, TellsAnnotations: true, HearsActivates: true}); err != nil {
			a.t.Fatal(err)
		}
	}
	p := &pluginv1.Placement{Uid: uid, Namespace: "ns", Name: uid, SchedulerName: "default-scheduler", Node: "a", PodLabels: labels, PodAnnotations: annotations, Annotations: stands, Stands: stands != nil}
	request := &pluginv1.PlaceRequest{Placement: p, Step: step, Plugins: []string{Yoda}}
	if step == pluginv1.Step_STEP_QUEUE_SORT {
		p.Node, request.Queued = "", &pluginv1.Queued{}
	}
	return a.send(request)
}

func (a *asked) send(request *pluginv1.PlaceRequest) *pluginv1.PlaceResponse {
	a.t.Helper()
	a.last.place++
	request.Id = a.last.place
	if err := a.place.Send(request); err != nil {
		a.t.Fatal(err)
	}
	for {
		response, err := a.place.Recv()
		if err != nil {
			a.t.Fatal(err)
		}
		if response.GetId() == request.GetId() {
			return response
		}
	}
}

// end ends the stream of placements.
func (a *asked) end() {
	a.t.Helper()
	if err := a.place.CloseSend(); err != nil {
		a.t.Fatal(err)
	}
	for {
		if _, err := a.place.Recv(); err != nil {
			a.place, a.last.place = nil, 0
			return
		}
	}
}

func asks(number int) map[string]string {
	return map[string]string{yoda.LabelNumber: fmt.Sprint(number)}
}

func TestNodesAreRefusedAndScoredByTheirCards(t *testing.T) {
	a := ask(t, "a", "b")
	a.tell("b", func(c *v1alpha1.Card) { c.ClockMHz, c.TotalMemoryMiB, c.FreeMemoryMiB = 9000, 80000, 20000 })
	refusals, scores := a.question("default-scheduler", asks(1), nil)
	if want := []string{"", ""}; !slices.Equal(refusals, want) {
		t.Errorf("refused: %q, want %q", refusals, want)
	}
	for feature, want := range map[string][]int32{"Clock": {5000, 9000}, "TotalMemory": {16000, 80000}, "Actual": {100, 25}} {
		if !slices.Equal(scores[feature], want) {
			t.Errorf("%s: scores %d, want %d", feature, scores[feature], want)
		}
	}
	for _, test := range []struct {
		profile     string
		labels      map[string]string
		annotations map[string]string
		want        []string
	}{
		{"default-scheduler", asks(2), nil, []string{yoda.ReasonNumber, yoda.ReasonNumber}},
		{"default-scheduler", map[string]string{"app": "web"}, nil, []string{"", ""}},
		{"default-scheduler", map[string]string{yoda.LabelClock: "5001"}, nil, []string{yoda.ReasonClock, ""}},
		{"default-scheduler", asks(1), map[string]string{yoda.AnnotationRequest: `{"memory":"30Gi"}`}, []string{yoda.ReasonSize, yoda.ReasonMemory}},
		{"default-scheduler", map[string]string{yoda.LabelNumber: "two"}, nil, slices.Repeat([]string{`label "scv/number" is "two": want a whole number from 1 to 64, in digits only`}, 2)},
		{"default-scheduler", map[string]string{yoda.LabelLevel: "High"}, nil, []string{yoda.ReasonLevel, yoda.ReasonLevel}},
		{"levels", map[string]string{yoda.LabelLevel: "High"}, nil, []string{"", ""}},
		{"levels", map[string]string{yoda.LabelLevel: "Low"}, nil, []string{yoda.ReasonLevel, yoda.ReasonLevel}},
	} {
		if got, _ := a.question(test.profile, test.labels, test.annotations); !slices.Equal(got, test.want) {
			t.Errorf("%s %v %v: refused: %q, want %q", test.profile, test.labels, test.annotations, got, test.want)
		}
	}
}

// Berth may see a pod on a node before this process does. Then nobody knows which cards are free.
func TestANodeIsRefusedForAPodThatIsNotKnownYet(t *testing.T) {
	a := ask(t, "a", "b")
	other := onNode{uid: "other", labels: asks(1)}
	want := []string{yoda.ReasonAwaited, ""}
	if got, _ := a.question("default-scheduler", asks(1), nil, other); !slices.Equal(got, want) {
		t.Errorf("refused: %q, want %q", got, want)
	}
	a.cards.SetPod(keeper.Pod{UID: "other", Node: "a", Labels: asks(1), Annotations: yoda.Grant{Cards: []string{"GPU-z"}}.Annotations()})
	if got, _ := a.question("default-scheduler", asks(1), nil, other, onNode{uid: "web", labels: map[string]string{"app": "web", yoda.LabelPriority: "1"}}); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("refused: %q, though it is known that it has another card", got)
	}
}

func TestACardIsChosenOnceAndToldToItsPod(t *testing.T) {
	a := ask(t, "a", "b")
	p := a.step(pluginv1.Step_STEP_RESERVE, "p", asks(1), nil)
	if got := p.GetAnnotations(); got[yoda.AnnotationCards] != "GPU-a" || got[yoda.AnnotationCardsMemory] != "0" || p.GetError() != "" {
		t.Fatalf("%v, want card GPU-a", p)
	}
	q := a.step(pluginv1.Step_STEP_RESERVE, "q", asks(1), nil)
	if q.GetRejection().GetReason() != yoda.ReasonTaken || len(q.GetAnnotations()) != 0 {
		t.Errorf("%v, want a rejection: %s", q, yoda.ReasonTaken)
	}
	if uid := <-a.woken; uid != "q" {
		t.Errorf("pod %s is tried again, want q", uid)
	}
	if web := a.step(pluginv1.Step_STEP_RESERVE, "web", nil, nil); web.GetRejection() != nil || web.GetError() != "" || len(web.GetAnnotations()) != 0 {
		t.Errorf("%v of a pod that asks for no card", web)
	}
	if got, _ := a.question("default-scheduler", asks(1), nil, onNode{uid: "p", labels: asks(1)}); got[0] != yoda.ReasonTaken {
		t.Errorf("refused: %q, want %q", got, yoda.ReasonTaken)
	}
}

// What the pod's annotation asks for counts when its cards are chosen, as it did when its node was.
func TestACardIsChosenAsTheAnnotationAsksForIt(t *testing.T) {
	a := ask(t, "a")
	share := map[string]string{yoda.AnnotationRequest: `{"memory":"7Gi","share":true}`}
	for _, uid := range []string{"p", "q"} {
		if got := a.stepOf(pluginv1.Step_STEP_RESERVE, uid, asks(1), share, nil).GetAnnotations(); got[yoda.AnnotationCards] != "GPU-a" || got[yoda.AnnotationCardsMemory] != "7168" {
			t.Errorf("%s is given %v, want 7 GiB of card GPU-a", uid, got)
		}
	}
	if r := a.stepOf(pluginv1.Step_STEP_RESERVE, "r", asks(1), map[string]string{yoda.AnnotationRequest: "{"}, nil); !strings.Contains(r.GetRejection().GetReason(), yoda.AnnotationRequest) {
		t.Errorf("%v, want a rejection that names the annotation", r)
	}
}

// Berth keeps what is said of nodes by what Yoda says that it depends on: to send it more would cost as much as all that it does.
func TestNoObjectsAreAskedFor(t *testing.T) {
	a := ask(t)
	described, err := a.client.Describe(t.Context(), &pluginv1.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range described.GetPlugins() {
		if d := p.GetDepends(); !d.GetPods() || !d.GetAnnotations() || d.GetObjects() || d.GetPod() || d.GetMilliseconds() != 0 {
			t.Errorf("%s depends on %v, want pods and annotations", p.GetName(), d)
		}
	}
}

// When a stream ends, a pod of it may be bound. Its card is not given away before the API server has been asked.
func TestAStreamThatEndsFreesNoCardByItself(t *testing.T) {
	a := ask(t, "a")
	a.step(pluginv1.Step_STEP_RESERVE, "p", asks(1), nil)
	a.end()
	if q := a.step(pluginv1.Step_STEP_RESERVE, "q", asks(1), nil); q.GetRejection() == nil {
		t.Fatalf("%v, want a rejection", q)
	}
	doubts := a.cards.Doubts(time.Now(), 10)
	if len(doubts) != 1 || doubts[0].UID != "p" || doubts[0].Namespace != "ns" || doubts[0].Name != "p" {
		t.Fatalf("doubts %v, want one about p", doubts)
	}
	a.cards.Read(doubts[0], keeper.Waits, time.Now())
	if r := a.step(pluginv1.Step_STEP_RESERVE, "r", asks(1), nil); r.GetAnnotations()[yoda.AnnotationCards] != "GPU-a" {
		t.Errorf("%v, want card GPU-a", r)
	}
}

func TestWhatStandsIsReservedAsItIsRecorded(t *testing.T) {
	a := ask(t, "a")
	if p := a.step(pluginv1.Step_STEP_RESERVE, "p", asks(1), yoda.Grant{Cards: []string{"GPU-a"}}.Annotations()); p.GetError() != "" || p.GetRejection() != nil || len(p.GetAnnotations()) != 0 {
		t.Errorf("%v, want nothing chosen, and nothing wrong", p)
	}
	if q := a.step(pluginv1.Step_STEP_RESERVE, "q", asks(1), nil); q.GetRejection() == nil {
		t.Errorf("%v, want a rejection", q)
	}
	if r := a.step(pluginv1.Step_STEP_RESERVE, "r", asks(1), map[string]string{yoda.AnnotationCards: "all"}); !strings.Contains(r.GetError(), `annotation "yoda.berth.dev/cards" has the ID "all"`) {
		t.Errorf("%v, want an error about the annotation", r)
	}
	if web := a.step(pluginv1.Step_STEP_RESERVE, "web", nil, map[string]string{"example.com/x": "y"}); web.GetError() != "" {
		t.Errorf("%v of a pod that asks for no card", web)
	}
	if s := a.cards.Stats(time.Now()); s.Reservations != 1 {
		t.Errorf("%d reservations, want one", s.Reservations)
	}
}

func TestPodsAreSortedByTheirPriority(t *testing.T) {
	a := ask(t)
	for labels, want := range map[[2]string]int64{{yoda.LabelPriority, "7"}: -7, {yoda.LabelPriority, "-2147483648"}: 2147483648, {yoda.LabelLevelV1, "High"}: -3, {"app", "web"}: 0, {yoda.LabelPriority, "first"}: 0} {
		if got := a.step(pluginv1.Step_STEP_QUEUE_SORT, "p", map[string]string{labels[0]: labels[1]}, nil); got.GetSortKey() != want || got.GetError() != "" {
			t.Errorf("%v: %v, want key %d", labels, got, want)
		}
	}
}

// Before the cluster has been read, nobody knows who has which cards. Who asks for none need not wait for that.
func TestNoCardIsGivenBeforeTheClusterIsKnown(t *testing.T) {
	a := &asked{t: t, cards: keeper.New(), synced: make(chan struct{}), nodes: make(map[string]int32)}
	a.serve()
	for _, node := range []string{"a", "b"} {
		a.cards.SetNode(node, yoda.Facts{})
		a.tell(node, func(*v1alpha1.Card) {})
	}
	if got := a.step(pluginv1.Step_STEP_RESERVE, "p", asks(1), nil); !strings.Contains(got.GetError(), errNotSynced.Error()) {
		t.Errorf("%v, want an error", got)
	}
	if got, _ := a.question("default-scheduler", nil, nil); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("refused: %q, though no card is asked for", got)
	}
	if got := a.step(pluginv1.Step_STEP_RESERVE, "q", asks(1), yoda.Grant{Cards: []string{"GPU-a"}}.Annotations()); got.GetError() != "" {
		t.Errorf("%v of what stands", got)
	}
	close(a.synced)
	if got, _ := a.question("default-scheduler", asks(1), nil); !slices.Equal(got, []string{yoda.ReasonTaken, ""}) {
		t.Errorf("refused: %q", got)
	}
}

// In a question of what might be, pods have what they would get, and those that are not there have nothing.
func TestHypotheticalPodsHaveWhatTheyWouldGet(t *testing.T) {
	a := ask(t, "a", "b")
	a.hypothetical = true
	a.cards.SetPod(keeper.Pod{UID: "real", Node: "a", Labels: asks(1), Annotations: yoda.Grant{Cards: []string{"GPU-a"}}.Annotations()})
	for _, test := range []struct {
		there []onNode
		want  string
	}{
		{nil, ""},
		{[]onNode{{uid: "real", labels: asks(1)}}, yoda.ReasonTaken},
		{[]onNode{{uid: "new", labels: asks(1), hypothetical: true}}, yoda.ReasonTaken},
		{[]onNode{{uid: "real", labels: asks(1), hypothetical: true}}, yoda.ReasonTaken},
		{[]onNode{{uid: "slip", labels: asks(65), hypothetical: true}, {uid: "many", labels: asks(2), hypothetical: true}}, ""},
		{[]onNode{{uid: "other", labels: asks(1)}}, yoda.ReasonAwaited},
	} {
		got, scores := a.question("default-scheduler", asks(1), nil, test.there...)
		if got[0] != test.want || got[1] != "" {
			t.Errorf("%v: refused: %q, want %q for the first", test.there, got, test.want)
		}
		if test.want == "" && scores["Clock"][0] != 5000 {
			t.Errorf("%v: scores %v", test.there, scores)
		}
	}
	// One more of those that are asked about shares a card as they do, though its annotation is not told.
	share := map[string]string{yoda.AnnotationRequest: `{"memory":"7Gi","share":true}`}
	for n, want := range []string{"", yoda.ReasonMemory, yoda.ReasonMemory} {
		var there []onNode
		for i := range n + 1 {
			there = append(there, onNode{uid: fmt.Sprint("new-", i), labels: asks(1), hypothetical: true})
		}
		if got, _ := a.question("default-scheduler", asks(1), share, there...); got[0] != want {
			t.Errorf("%d share the card: refused: %q, want %q", n+1, got, want)
		}
	}
	if s := a.cards.Stats(time.Now()); s.Reservations != 0 {
		t.Errorf("%d reservations, want none", s.Reservations)
	}
}
