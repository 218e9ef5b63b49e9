package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/plugins/yoda"
	"github.com/berth-scheduler/berth/plugins/yoda/keeper"
)

// judge has the plugins' functions, for a profile.
type judge struct {
	cards  *keeper.Cards
	synced <-chan struct{} // closed when cards may be given
	wake   func(pods ...string)
	args   *yoda.Args
	now    func() time.Time

	profiles *sync.Map // by scheduler name, the arguments that it gives Yoda: those that filter know them, and those that score have none of their own
}

// depends is what all that is said depends on: which pods are on the node, and what the pod asks for by its labels and its annotation.
var depends = plugin.Dependencies{Pods: true, Annotations: true}

// Plugins returns the plugins, which judge by cards once synced is closed. Wake has pods tried again.
func Plugins(cards *keeper.Cards, synced <-chan struct{}, wake func(pods ...string)) []plugin.Plugin {
	j := &judge{cards: cards, synced: synced, wake: wake, args: new(yoda.Args), now: time.Now, profiles: new(sync.Map)}
	main := j.plugin()
	main.Configure = func(arguments json.RawMessage) (plugin.Plugin, error) {
		args, err := yoda.ParseArgs(arguments)
		if err != nil {
			return plugin.Plugin{}, err
		}
		cards.Use(args)
		with := *j
		with.args = args
		return with.plugin(), nil
	}
	plugins := []plugin.Plugin{main}
	for f := range yoda.Feature(yoda.NumFeatures) {
		score := plugin.Plugin{Name: Yoda + f.String(), Depends: depends, Score: func(ctx context.Context, kind *plugin.Kind, node *plugin.Node) (int64, error) {
			return j.score(kind, node, f)
		}}
		if f.Relative() {
			score.Normalization = plugin.Proportional
		}
		plugins = append(plugins, score)
	}
	return plugins
}

// plugin returns the plugin Yoda.
func (j *judge) plugin() plugin.Plugin {
	return plugin.Plugin{Name: Yoda, Filter: j.filter, Reserve: j.reserve, Unreserve: j.unreserve, SortKey: j.sortKey, Depends: depends}
}

var errNotSynced = errors.New("the cards of the cluster are not known yet")

// known returns an error as long as no card may be given. Nobody waits here, for others wait for their turn, also those that ask for no card; whoever asks for some is tried again soon.
func (j *judge) known() error {
	select {
	case <-j.synced:
		return nil
	default:
		return errNotSynced
	}
}

// requestOf returns what pods of a kind that is asked about ask for, nil if they ask for no card. An error says that they ask for some in a way that is wrong.
func requestOf(kind *plugin.Kind) (*yoda.Request, error) {
	is := kind.Once(requestKey{}, func() any {
		r, err := yoda.ParseRequest(kind.Labels, kind.Annotations)
		return parsed{r, err}
	}).(parsed)
	return is.request, is.err
}

// parsed is what requestOf has worked out of a kind, and requestKey its key there.
type (
	parsed struct {
		request *yoda.Request
		err     error
	}
	requestKey struct{}
)

// filter refuses nodes that have no cards for pods of a kind.
func (j *judge) filter(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
	r, err := requestOf(kind)
	if err != nil {
		return refusal(yoda.Refuse(err)), nil
	}
	if r == nil {
		return nil, nil
	}
	if err := j.known(); err != nil {
		return nil, err
	}
	j.profiles.Store(kind.SchedulerName, j.args)
	v, refused, err := j.look(kind, node, r)
	if err != nil || refused != nil {
		return refused, err
	}
	if v.refusal != nil {
		return refusal(v.refusal), nil
	}
	v.view.Scratch().Store(&judged{kind, *r, yoda.FeaturesOf(v.view, v.chosen)})
	return nil, nil
}

func refusal(r *yoda.Refusal) *plugin.Refusal {
	return &plugin.Refusal{Reason: r.Reason, Unresolvable: r.Unresolvable}
}

// looked is what is known of a node, and which cards of it a pod would get, or why none.
type looked struct {
	view    *yoda.View
	chosen  []*yoda.Card
	refusal *yoda.Refusal
}

// look looks which cards of a node a pod of a kind would get, by what it asks for. It is refused for a pod on it of which nothing is known here.
func (j *judge) look(kind *plugin.Kind, node *plugin.Node, r *yoda.Request) (*looked, *plugin.Refusal, error) {
	var asking, supposed []types.UID
	for uid, pod := range node.Pods {
		switch {
		case !yoda.Asks(pod.Kind.Labels):
		case pod.Hypothetical:
			supposed = append(supposed, types.UID(uid))
		default:
			asking = append(asking, types.UID(uid))
		}
	}
	view, known := j.cards.View(node.Name, asking...)
	if !known {
		if !node.Hypothetical {
			j.cards.Unknown(node.Name, asking...)
		}
		return nil, &plugin.Refusal{Reason: yoda.ReasonAwaited}, nil
	}
	if node.Hypothetical {
		view = j.suppose(view, kind, node, r, supposed)
	}
	chosen, refused := yoda.Choose(view, r, j.args, j.now())
	return &looked{view, chosen, refused}, nil, nil
}

// suppose returns what would be known of a node in a question of what might be: pods that are not there have nothing, and those that are there in the question only have what they would get, one after the other.
func (j *judge) suppose(view *yoda.View, kind *plugin.Kind, node *plugin.Node, r *yoda.Request, supposed []types.UID) *yoda.View {
	var gone []types.UID
	for uid := range view.Pods() {
		if there := node.Pods[string(uid)]; there == nil || there.Hypothetical {
			gone = append(gone, uid)
		}
	}
	view = view.Without(gone...)
	slices.Sort(supposed)
	for _, uid := range supposed {
		asks := supposedRequest(node.Pods[string(uid)].Kind, kind, r)
		if asks == nil {
			continue
		}
		if chosen, refused := yoda.Choose(view, asks, j.args, j.now()); refused == nil {
			view = view.With(uid, asks.Grant(chosen))
		}
	}
	return view
}

// supposedRequest returns what a pod asks for that is on a node in a question only, where one that asks for r is asked about, of another kind or of the same. Its annotations are not told: if it has the same labels, it is one more of those that are asked about, and else it asks for what its labels say.
func supposedRequest(is, asked *plugin.Kind, r *yoda.Request) *yoda.Request {
	if is.Namespace == asked.Namespace && maps.Equal(is.Labels, asked.Labels) {
		return r
	}
	asks, err := yoda.ParseRequest(is.Labels, nil)
	if err != nil {
		return nil
	}
	return asks
}

// judged is what was found out of a node for pods of a kind, kept with the view of it: its features are asked for behind its verdict, one by one.
type judged struct {
	kind     *plugin.Kind
	request  yoda.Request
	features yoda.Features
}

// score returns a feature of a node for pods of a kind, of the cards that they would get.
func (j *judge) score(kind *plugin.Kind, node *plugin.Node, f yoda.Feature) (int64, error) {
	r, err := requestOf(kind)
	if err != nil || r == nil {
		return 0, nil // it is refused, or all nodes are alike to it
	}
	if view, _ := j.cards.View(node.Name); !node.Hypothetical {
		if is, ok := view.Scratch().Load().(*judged); ok && is.kind == kind && is.request == *r {
			return is.features[f], nil
		}
	}
	with := *j
	if args, ok := j.profiles.Load(kind.SchedulerName); ok {
		with.args = args.(*yoda.Args)
	}
	v, refused, err := with.look(kind, node, r)
	if err != nil || refused != nil || v.refusal != nil {
		return 0, err // it has changed since it was filtered, or is not filtered in this profile
	}
	features := yoda.FeaturesOf(v.view, v.chosen)
	v.view.Scratch().Store(&judged{kind, *r, features})
	return features[f], nil
}

// sortKey has pods go in the order of their priority, the highest first.
func (j *judge) sortKey(_ context.Context, p *plugin.Placement, _ plugin.Queued) (int64, error) {
	priority, err := yoda.Priority(p.Labels)
	if err != nil {
		priority = 0 // it fits nowhere, and is told why there
	}
	return -int64(priority), nil
}

// reserve chooses a pod's cards, and notes that they are its own. What stands is noted as it is recorded.
func (j *judge) reserve(_ context.Context, p *plugin.Placement) (*plugin.Rejection, error) {
	pod := keeper.Pod{UID: types.UID(p.UID), Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Annotations: p.PodAnnotations}
	if p.Stands {
		return nil, j.stand(p, pod)
	}
	r, err := yoda.ParseRequest(p.Labels, p.PodAnnotations)
	if err != nil {
		return &plugin.Rejection{Reason: err.Error()}, nil
	}
	if r == nil {
		return nil, nil
	}
	if err := j.known(); err != nil {
		return nil, err
	}
	grant, refused := j.cards.Give(p, pod, p.Node, r, j.args, j.now())
	if refused != nil { // something has happened since the node was judged
		j.wake(p.UID)
		return &plugin.Rejection{Reason: refused.Reason}, nil
	}
	for name, value := range grant.Annotations() {
		if err := p.Annotate(name, value); err != nil {
			return nil, fmt.Errorf("tell pod %s/%s which cards it gets: %w", p.Namespace, p.Name, err) // Unreserve follows
		}
	}
	return nil, nil
}

// stand notes which cards a pod was given before.
func (j *judge) stand(p *plugin.Placement, pod keeper.Pod) error {
	grant, has, err := yoda.GrantOf(p.Annotations())
	switch {
	case err != nil:
		return fmt.Errorf("what was chosen for pod %s/%s: %w", p.Namespace, p.Name, err)
	case has, yoda.Asks(pod.Labels): // by whoever has placed it: it is not known which cards it has
		j.cards.Stand(p, pod, p.Node, grant, j.now())
	}
	return nil
}

// unreserve gives a pod's cards back, as soon as it is known that it is not bound.
func (j *judge) unreserve(_ context.Context, p *plugin.Placement) { j.cards.End(p, j.now()) }
