package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// whatIf is what one whatif command asks.
type whatIf struct {
	output
	changes      changes
	files        []string
	times        int32
	pending      bool
	noPreemption bool
	summary      bool
}

// add adds the flags that all whatif commands have.
func (w *whatIf) add(cmd *cobra.Command, opt Options, c *connection) {
	c.add(cmd, opt)
	c.addOffline(cmd, opt)
	w.output.add(cmd)
	w.changes.add(cmd)
	cmd.Flags().BoolVar(&w.pending, "pending", false, "schedule the pods that are pending now too")
	cmd.Flags().BoolVar(&w.noPreemption, "no-preemption", false, "suppose that no pod is evicted for another")
	cmd.Flags().BoolVar(&w.summary, "summary", false, "tell the counts, not each pod")
}

func whatIfCommand(opt Options) *cobra.Command {
	var c connection
	var w whatIf
	cmd := &cobra.Command{
		Use:   "whatif [-f FILE] [--times N] [CHANGES]",
		Short: "Say what would happen: with more pods, other nodes, another configuration",
		Long: "Whatif makes changes in a copy of the cluster that nobody else sees, schedules pods there exactly as Berth would, and\n" +
			"says where they would go. The cluster stays as it is. Changes are made in the order in which they are given.",
		Example: fmt.Sprintf("  %[1]s whatif -f deployment.yaml --times 10\n  %[1]s whatif --pending --add-nodes like=gpu-1,count=4\n"+
			"  %[1]s whatif --pending --uncordon node-3 --label node-3:disk=ssd\n  %[1]s whatif drain node-3", opt.Program),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(w.files) == 0 && len(w.changes) == 0 && !w.pending {
				return errors.New("whatif what? -f FILE: pods more; --pending: the pods that wait; or a change, such as --add-nodes like=NODE,count=2")
			}
			return w.run(cmd.Context(), opt, &c)
		},
	}
	w.add(cmd, opt, &c)
	cmd.Flags().StringArrayVarP(&w.files, "filename", "f", nil, `file with the pods to schedule, or what makes some: Deployments, ReplicaSets, StatefulSets, Jobs; "-" for standard input`)
	cmd.Flags().Int32Var(&w.times, "times", 1, "take the manifests so many times")
	cmd.AddCommand(whatIfDrainCommand(opt))
	return cmd
}

// whatIfDrainCommand is below whatif, so that nobody believes that it drains.
func whatIfDrainCommand(opt Options) *cobra.Command {
	var c connection
	var w whatIf
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Say where the pods of a node would go; it drains nothing",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("whatif drain takes the name of one node")
			}
			return nil
		},
		Example: fmt.Sprintf("  %[1]s whatif drain node-3\n  %[1]s whatif drain node-3 --cordon node-4", opt.Program),
		RunE: func(cmd *cobra.Command, args []string) error {
			w.changes = append(w.changes, known(drained(args[0])))
			return w.run(cmd.Context(), opt, &c)
		},
	}
	w.add(cmd, opt, &c)
	cmd.ValidArgsFunction = completeNodes(&c, opt)
	return cmd
}

func (w *whatIf) run(ctx context.Context, opt Options, c *connection) error {
	if err := w.check(); err != nil {
		return err
	}
	if w.times < 0 || w.times > 1 && len(w.files) == 0 {
		return errors.New("--times says how often the manifests of -f are taken: it needs -f, and is at least 1")
	}
	changes, err := w.changes.read(opt.In)
	if err != nil {
		return err
	}
	manifests, err := readManifests(w.files, opt.In)
	if err != nil {
		return err
	}
	request := &schedulingv1.WhatIfRequest{
		Changes: changes, Manifests: manifests, Times: w.times, Pending: w.pending, NoPreemption: w.noPreemption, SummaryOnly: w.summary,
	}
	return c.with(ctx, opt, func(s *session) error {
		response, err := ask(ctx, s, s.WhatIf, request)
		if err != nil {
			return err
		}
		return w.show(opt, answer{response, func() []string { return outcomeNames(response) }, func(t *table) { t.whatIf(response) }})
	})
}

func outcomeNames(r *schedulingv1.WhatIfResponse) []string {
	names := make([]string, 0, len(r.GetOutcomes()))
	for _, o := range r.GetOutcomes() {
		names = append(names, "pod/"+o.GetName())
	}
	return names
}

// whatIf writes what would become of each pod, why some would go nowhere, and how full the cluster would be.
func (t *table) whatIf(r *schedulingv1.WhatIfResponse) {
	t.line("Nothing has been changed: this is of a copy of the cluster at version %s.", versionText(r.GetVersion()))
	switch all := r.GetPlaced() + r.GetUnplaced(); {
	case all == 0:
		t.line("There was no pod to schedule.")
	default:
		t.line("%s of %s would be placed.", count(r.GetPlaced()), counted(all, "pod", "pods"))
	}
	if len(r.GetOutcomes()) > 0 {
		t.gap()
		t.outcomes(r.GetOutcomes())
	}
	t.reasons("Not placed:", r.GetOutcomes(), func(o *schedulingv1.Outcome) bool { return o.GetNode() == "" })
	t.reasons("Left where they are:", r.GetOutcomes(), func(o *schedulingv1.Outcome) bool { return o.GetNode() != "" && o.GetSkipped() != "" })
	t.notes(r.GetNotes())
	if r.GetBefore() != nil && r.GetAfter() != nil {
		t.gap()
		t.utilizations("BEFORE", r.GetBefore(), "AFTER", r.GetAfter())
	}
}

func (t *table) notes(notes []string) {
	for k, note := range notes {
		if k == 0 {
			t.gap()
		}
		t.line("Note: %s", note)
	}
}

func (t *table) outcomes(outcomes []*schedulingv1.Outcome) {
	moved := slices.ContainsFunc(outcomes, func(o *schedulingv1.Outcome) bool { return o.GetFrom() != "" })
	protected := slices.ContainsFunc(outcomes, func(o *schedulingv1.Outcome) bool { return len(o.GetProtected()) > 0 })
	evicts := slices.ContainsFunc(outcomes, func(o *schedulingv1.Outcome) bool { return len(o.GetVictims()) > 0 })
	header := []string{"NAMESPACE", "POD", "NODE"}
	if moved {
		header = append(header, "WAS ON")
	}
	if evicts {
		header = append(header, "EVICTS")
	}
	if protected {
		header = append(header, "PROTECTED BY")
	}
	t.row(header...)
	for _, o := range outcomes {
		cells := []string{o.GetNamespace(), o.GetName(), o.GetNode()}
		if o.GetNode() == "" {
			cells[2] = "none"
		}
		if moved {
			cells = append(cells, o.GetFrom())
		}
		if evicts {
			cells = append(cells, strings.Join(o.GetVictims(), ","))
		}
		if protected {
			cells = append(cells, strings.Join(o.GetProtected(), ","))
		}
		t.row(cells...)
	}
}

// reasons says why pods would not be placed, or stay where they are, once for all that have the same reason.
func (t *table) reasons(title string, outcomes []*schedulingv1.Outcome, of func(*schedulingv1.Outcome) bool) {
	var reasons []string
	pods := make(map[string][]string)
	for _, o := range outcomes {
		if !of(o) {
			continue
		}
		why := cmp.Or(o.GetSkipped(), o.GetMessage())
		if pods[why] == nil {
			reasons = append(reasons, why)
		}
		pods[why] = append(pods[why], o.GetNamespace()+"/"+o.GetName())
	}
	if len(reasons) == 0 {
		return
	}
	t.gap()
	t.line("%s", title)
	for _, why := range reasons {
		t.line("  %s: %s", some(pods[why], t.wide), why)
	}
}

// some names the first of several, or all.
func some(names []string, all bool) string {
	const few = 3
	if all || len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %s more", strings.Join(names[:few-1], ", "), count(int32(len(names)-few+1)))
}

// utilizations writes two clusters side by side.
func (t *table) utilizations(one string, a *schedulingv1.Utilization, two string, b *schedulingv1.Utilization) {
	t.row("CLUSTER", one, two)
	t.row("nodes", count(a.GetNodes()), count(b.GetNodes()))
	for _, name := range both(a.GetResources(), b.GetResources(), (*schedulingv1.ResourceUse).GetName) {
		t.row(name, use(a, name), use(b, name))
	}
	zones := both(a.GetZones(), b.GetZones(), (*schedulingv1.ZoneUse).GetZone)
	if len(zones) == 1 && zones[0] == "" {
		return // there are none
	}
	for _, zone := range zones {
		title := "zone " + zone
		if zone == "" {
			title = "no zone"
		}
		t.row(title, zoneUse(a, zone), zoneUse(b, zone))
	}
}

// both returns the names in either list, in their order, those of the second behind.
func both[T any](a, b []T, name func(T) string) []string {
	var names []string
	for _, x := range slices.Concat(a, b) {
		if !slices.Contains(names, name(x)) {
			names = append(names, name(x))
		}
	}
	return names
}

// use is how much of a resource is used, and how full the fullest node is of it.
func use(u *schedulingv1.Utilization, name string) string {
	for _, r := range u.GetResources() {
		if r.GetName() != name {
			continue
		}
		if r.GetAllocatable() == 0 {
			return "none"
		}
		return fmt.Sprintf("%s of %s (%s, fullest node %s)", rough(name, r.GetRequested()), rough(name, r.GetAllocatable()),
			percent(float64(r.GetRequested())/float64(r.GetAllocatable())), percent(float64(r.GetMaxPermille())/1000))
	}
	return "none"
}

func zoneUse(u *schedulingv1.Utilization, zone string) string {
	for _, z := range u.GetZones() {
		if z.GetZone() == zone {
			return fmt.Sprintf("%s on %s", counted(z.GetPods(), "pod", "pods"), counted(z.GetNodes(), "node", "nodes"))
		}
	}
	return "none"
}

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 0, 64) + "%" }

func capacityCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	var n namespaceFlag
	var w changes
	var file string
	var limit int32
	cmd := &cobra.Command{
		Use:   "capacity (POD | podgroup/NAME | -f FILE) [CHANGES]",
		Short: "Say how many more of a pod fit, or of a PodGroup, and what stops the next one",
		Long: "Capacity counts how many more pods like one would be placed, or how many more PodGroups with pods like those of one, each\n" +
			"whole. A file with a PodGroup asks about that, with all pods of the file; else about the first pod.",
		Example: fmt.Sprintf("  %[1]s capacity web-1 -n shop\n  %[1]s capacity podgroup/train -n ml\n  %[1]s capacity -f job.yaml --add-nodes like=gpu-1,count=2",
			opt.Program),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == (file != "") {
				return errors.New("capacity takes either the name of a pod, or podgroup/ and the name of a PodGroup, or -f FILE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			request := &schedulingv1.GetCapacityRequest{Limit: limit}
			var err error
			if request.Changes, err = w.read(opt.In); err != nil {
				return err
			}
			if file != "" {
				request.Manifest, err = readManifests([]string{file}, opt.In)
			} else {
				group, is := strings.CutPrefix(args[0], "podgroup/")
				switch {
				case is || strings.HasPrefix(group, "podgroup.scheduling.x-k8s.io/"): // as one of Coscheduling is called
					request.PodGroup = group
				default:
					request.Name = args[0]
				}
				request.Namespace, err = n.get(opt)
			}
			if err != nil {
				return err
			}
			return c.with(cmd.Context(), opt, func(s *session) error {
				response, err := ask(cmd.Context(), s, s.GetCapacity, request)
				if err != nil {
					return err
				}
				return o.show(opt, answer{response, nil, func(t *table) { t.capacity(response) }})
			})
		},
	}
	c.add(cmd, opt)
	c.addOffline(cmd, opt)
	o.add(cmd)
	n.add(cmd)
	w.add(cmd)
	cmd.Flags().StringVarP(&file, "filename", "f", "", `file with the pod, or what makes some, or with a PodGroup and its pods; "-" for standard input`)
	cmd.Flags().Int32Var(&limit, "limit", 10_000, "do not count further than this")
	cmd.ValidArgsFunction = completePods(&c, opt)
	return cmd
}

func (t *table) capacity(r *schedulingv1.GetCapacityResponse) {
	what, each := ofGroup(r.GetGroup())
	fit := counted(r.GetFit(), "more"+what+" fits", "more"+what+" fit")
	if r.GetAtLeast() {
		fit = "At least " + fit
	}
	t.line("%s%s, as of version %s.", fit, each, versionText(r.GetVersion()))
	defer t.notes(r.GetNotes())
	if domains := r.GetGroup().GetDomains(); len(domains) > 0 {
		t.gap()
		t.row("FIT", strings.Join(r.GetGroup().GetTopology(), "/"))
		for _, d := range domains {
			t.row(count(d.GetFit()), d.GetName())
		}
		t.gap()
	}
	if r.GetMessage() == "" && len(r.GetVerdicts()) == 0 {
		return
	}
	t.line("The next one: %s", r.GetMessage())
	if len(r.GetVerdicts()) > 0 {
		t.gap()
		t.verdicts(r.GetVerdicts())
	}
}

// ofGroup says what fits if that is a PodGroup, and with how many pods.
func ofGroup(g *schedulingv1.GroupCapacity) (what, each string) {
	if g == nil {
		return "", ""
	}
	what, each = " of PodGroup "+g.GetName(), counted(g.GetPods(), "pod", "pods")
	if g.GetWants() > 0 && g.GetWants() < g.GetPods() {
		each = "at least " + count(g.GetWants()) + " of " + each
	}
	return what, ", " + each + " each"
}

func (t *table) verdicts(verdicts []*schedulingv1.Verdict) {
	t.row("NODES", "PLUGIN", "EVICTION COULD HELP", "REASON", "SUCH AS")
	for _, v := range verdicts {
		t.row(count(v.GetNodes()), v.GetPlugin(), helps(v), v.GetReason(), examples(v, t.wide))
	}
}

func compareCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	var files []string
	var times int32
	var everything bool
	var one, two string
	cmd := &cobra.Command{
		Use:   "compare [--config FILE] --with FILE [-f FILE | --everything]",
		Short: "Schedule the same pods under two configurations, and say what differs",
		Long: "Compare schedules pods in two copies of the cluster, one for each KubeSchedulerConfiguration, and says which would be\n" +
			"placed elsewhere and how full the nodes would be. The pods are those of the manifests, or those that are pending, or,\n" +
			"with --everything, all pods of the cluster from nothing. The cluster stays as it is.",
		Example: fmt.Sprintf("  %[1]s compare --with binpack.yaml --everything\n  %[1]s compare --config a.yaml --with b.yaml -f deployment.yaml --times 20", opt.Program),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			switch {
			case one == "" && two == "":
				return errors.New("compare needs --with FILE, a configuration to compare the present one with, or --config FILE, or both")
			case everything && len(files) > 0:
				return errors.New("--everything and -f exclude each other")
			}
			request := &schedulingv1.CompareRequest{Everything: everything, Times: times}
			var err error
			if request.Manifests, err = readManifests(files, opt.In); err != nil {
				return err
			}
			for _, side := range []struct {
				file string
				text *string
			}{{one, &request.Configuration}, {two, &request.Other}} {
				if side.file != "" {
					if *side.text, err = readFile(side.file, opt.In); err != nil {
						return err
					}
				}
			}
			return c.with(cmd.Context(), opt, func(s *session) error {
				response, err := ask(cmd.Context(), s, s.Compare, request)
				if err != nil {
					return err
				}
				return o.show(opt, answer{response, func() []string { return moveNames(response) }, func(t *table) { t.compare(response) }})
			})
		},
	}
	c.add(cmd, opt)
	c.addOffline(cmd, opt)
	o.add(cmd)
	cmd.Flags().StringVar(&one, "config", "", "the one configuration (default: the present one)")
	cmd.Flags().StringVar(&two, "with", "", "the other configuration (default: the present one)")
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, `file with the pods to schedule, or what makes some; "-" for standard input (default: the pods that are pending)`)
	cmd.Flags().Int32Var(&times, "times", 1, "take the manifests so many times")
	cmd.Flags().BoolVar(&everything, "everything", false, "schedule all pods of the cluster again from nothing; at most 10,000")
	return cmd
}

func moveNames(r *schedulingv1.CompareResponse) []string {
	names := make([]string, 0, len(r.GetMoves()))
	for _, m := range r.GetMoves() {
		names = append(names, "pod/"+m.GetName())
	}
	return names
}

func (t *table) compare(r *schedulingv1.CompareResponse) {
	t.line("Nothing has been changed: this is of two copies of the cluster at version %s.", versionText(r.GetVersion()))
	t.line("%s on the same node, %s on another; %s placed by the one only, %s by the other only.",
		counted(r.GetSame(), "pod", "pods"), count(r.GetMoved()), count(r.GetOnlyOne()), count(r.GetOnlyTwo()))
	if len(r.GetMoves()) > 0 {
		t.gap()
		t.row("NAMESPACE", "POD", "ONE", "OTHER")
		for _, m := range r.GetMoves() {
			one, two := m.GetOne(), m.GetTwo()
			if one == "" {
				one = "none"
			}
			if two == "" {
				two = "none"
			}
			t.row(m.GetNamespace(), m.GetName(), one, two)
		}
		if all := r.GetMoved() + r.GetOnlyOne() + r.GetOnlyTwo(); int(all) > len(r.GetMoves()) {
			t.line("and %s more", count(all-int32(len(r.GetMoves()))))
		}
	}
	t.notes(r.GetNotes())
	t.gap()
	t.utilizations("ONE", r.GetOne(), "OTHER", r.GetTwo())
}
