package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// listPage is how many objects are asked for at a time: the most that the API gives.
const listPage = 1000

// get is what one get command asks for.
type get struct {
	output
	namespace     string
	allNamespaces bool
	node          string
	pending       bool
}

func getCommand(opt Options) *cobra.Command {
	var c connection
	var g get
	cmd := &cobra.Command{
		Use:   "get (pods|nodes|status) [NAME]",
		Short: "Show pods, nodes, or the state of Berth itself",
		Example: fmt.Sprintf("  %[1]s get pods -A -o wide\n  %[1]s get pod web-1 -n shop -o yaml\n  %[1]s get status\n  %[1]s get pods --pending -o name",
			opt.Program),
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := g.check(cmd, opt, args); err != nil {
				return err
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.get(cmd.Context(), opt, g, args) })
		},
	}
	c.add(cmd, opt)
	g.add(cmd)
	cmd.Flags().StringVarP(&g.namespace, "namespace", "n", "", "namespace of the pods (default: default, or that of the kubeconfig's context)")
	cmd.Flags().BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "pods of all namespaces")
	cmd.Flags().StringVar(&g.node, "node", "", "only pods on this node")
	cmd.Flags().BoolVar(&g.pending, "pending", false, "only pods that are not placed")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return []string{"pods", "nodes", "status"}, cobra.ShellCompDirectiveNoFileComp
		}
		if resource(args[0]) == "nodes" {
			return completeNodes(&c, opt)(cmd, args[1:], start)
		}
		return completePods(&c, opt)(cmd, args[1:], start)
	}
	return cmd
}

// nodesCommand is get nodes by a shorter name.
func nodesCommand(opt Options) *cobra.Command {
	var c connection
	var g get
	cmd := &cobra.Command{
		Use:   "nodes [NAME]",
		Short: "Show nodes, and how full they are",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := g.output.check(); err != nil {
				return err
			}
			args = append([]string{"nodes"}, args...)
			return c.with(cmd.Context(), opt, func(s *session) error { return s.get(cmd.Context(), opt, g, args) })
		},
	}
	c.add(cmd, opt)
	g.add(cmd)
	cmd.ValidArgsFunction = completeNodes(&c, opt)
	return cmd
}

// resource is what the first argument of get names.
func resource(name string) string {
	switch strings.ToLower(name) {
	case "pod", "pods", "po":
		return "pods"
	case "node", "nodes", "no":
		return "nodes"
	case "status":
		return "status"
	}
	return ""
}

func (g *get) check(cmd *cobra.Command, opt Options, args []string) error {
	what := resource(args[0])
	if err := g.output.check(); err != nil {
		return err
	}
	if what == "" {
		return fmt.Errorf("%q cannot be shown: want pods, nodes or status", args[0])
	}
	if what == "status" && len(args) > 1 {
		return errors.New("status takes no name")
	}
	if g.allNamespaces && (len(args) > 1 || cmd.Flags().Changed("namespace")) {
		return errors.New("--all-namespaces goes with neither a name nor --namespace")
	}
	for _, flag := range []string{"namespace", "all-namespaces", "node", "pending"} {
		if what != "pods" && cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s is only for pods", flag)
		}
	}
	for _, flag := range []string{"node", "pending"} {
		if len(args) > 1 && cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s goes with no name", flag)
		}
	}
	if g.namespace != "" || g.allNamespaces || what != "pods" {
		return nil
	}
	if cmd.Flags().Changed("namespace") {
		return errors.New("--namespace is empty: use --all-namespaces for all")
	}
	var err error
	g.namespace, err = opt.Namespace()
	return err
}

func (s *session) get(ctx context.Context, opt Options, g get, args []string) error {
	name := ""
	if len(args) > 1 {
		if name = args[1]; name == "" {
			return errors.New("the name is empty")
		}
	}
	switch resource(args[0]) {
	case "pods":
		return s.getPods(ctx, opt, g, name)
	case "nodes":
		return s.getNodes(ctx, opt, g, name)
	}
	response, err := ask(ctx, s, s.GetStatus, &schedulingv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	return g.show(opt, answer{response, func() []string { return memberNames(response) }, func(t *table) { t.status(response) }})
}

func (s *session) getPods(ctx context.Context, opt Options, g get, name string) error {
	if name != "" {
		response, err := ask(ctx, s, s.GetPod, &schedulingv1.GetPodRequest{Namespace: g.namespace, Name: name})
		if err != nil {
			return err
		}
		pods := []*schedulingv1.Pod{response.GetPod()}
		return g.show(opt, answer{response.GetPod(), func() []string { return podNames(pods) }, func(t *table) { t.pods(pods, false) }})
	}
	namespace := g.namespace
	if g.allNamespaces {
		namespace = ""
	}
	all, err := s.listPods(ctx, &schedulingv1.ListPodsRequest{Namespace: namespace, Node: g.node, PendingOnly: g.pending})
	if err != nil {
		return err
	}
	if len(all.GetPods()) == 0 && g.table() {
		where := "in namespace " + namespace
		if namespace == "" {
			where = "in any namespace"
		}
		return notice(opt.Err, "no such pods %s", where)
	}
	return g.show(opt, answer{all, func() []string { return podNames(all.GetPods()) }, func(t *table) { t.pods(all.GetPods(), g.allNamespaces) }})
}

// listPods returns all pages in one.
func (s *session) listPods(ctx context.Context, request *schedulingv1.ListPodsRequest) (*schedulingv1.ListPodsResponse, error) {
	all := &schedulingv1.ListPodsResponse{}
	request.PageSize = listPage
	for {
		response, err := ask(ctx, s, s.ListPods, request)
		if err != nil {
			return nil, err
		}
		all.Pods = append(all.Pods, response.GetPods()...)
		all.Version = response.GetVersion()
		if request.PageToken = response.GetNextPageToken(); request.GetPageToken() == "" {
			return all, nil
		}
	}
}

func (s *session) getNodes(ctx context.Context, opt Options, g get, name string) error {
	if name != "" {
		response, err := ask(ctx, s, s.GetNode, &schedulingv1.GetNodeRequest{Name: name})
		if err != nil {
			return err
		}
		nodes := []*schedulingv1.Node{response.GetNode()}
		return g.show(opt, answer{response.GetNode(), func() []string { return nodeNames(nodes) }, func(t *table) { t.nodes(nodes) }})
	}
	all, err := s.listNodes(ctx)
	if err != nil {
		return err
	}
	if len(all.GetNodes()) == 0 && g.table() {
		return notice(opt.Err, "there are no nodes")
	}
	return g.show(opt, answer{all, func() []string { return nodeNames(all.GetNodes()) }, func(t *table) { t.nodes(all.GetNodes()) }})
}

// listNodes returns all pages in one.
func (s *session) listNodes(ctx context.Context) (*schedulingv1.ListNodesResponse, error) {
	all := &schedulingv1.ListNodesResponse{}
	request := &schedulingv1.ListNodesRequest{PageSize: listPage}
	for {
		response, err := ask(ctx, s, s.ListNodes, request)
		if err != nil {
			return nil, err
		}
		all.Nodes = append(all.Nodes, response.GetNodes()...)
		all.Version = response.GetVersion()
		if request.PageToken = response.GetNextPageToken(); request.GetPageToken() == "" {
			return all, nil
		}
	}
}

func podNames(pods []*schedulingv1.Pod) []string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, "pod/"+p.GetName())
	}
	return names
}

func nodeNames(nodes []*schedulingv1.Node) []string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, "node/"+n.GetName())
	}
	return names
}

func memberNames(s *schedulingv1.GetStatusResponse) []string {
	names := make([]string, 0, len(s.GetMembers()))
	for _, m := range s.GetMembers() {
		names = append(names, memberName(m))
	}
	return names
}

func memberName(m *schedulingv1.Member) string { return m.GetRole() + "/" + m.GetId() }
