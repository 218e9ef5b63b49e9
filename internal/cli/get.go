package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// listPage is how many objects are asked for at a time: the most that the API gives.
const listPage = 1000

// get is what one get command asks for.
type get struct {
	namespace     string
	allNamespaces bool
	node          string
	pending       bool
	output        string
}

func getCommand(opt Options) *cobra.Command {
	var c connection
	var g get
	cmd := &cobra.Command{
		Use:     "get (pods|nodes|status) [NAME]",
		Short:   "Show pods, nodes, or the state of Berth itself",
		Example: "  berth get pods -A -o wide\n  berth get pod web-1 -n shop -o yaml\n  berth get status",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := g.check(cmd, args); err != nil {
				return err
			}
			return c.with(opt, func(s *session) error { return s.get(cmd.Context(), opt, g, args) })
		},
	}
	c.add(cmd, opt)
	cmd.Flags().StringVarP(&g.namespace, "namespace", "n", "default", "namespace of the pods")
	cmd.Flags().BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "pods of all namespaces")
	cmd.Flags().StringVar(&g.node, "node", "", "only pods on this node")
	cmd.Flags().BoolVar(&g.pending, "pending", false, "only pods that are not placed")
	cmd.Flags().StringVarP(&g.output, "output", "o", "", "wide, json or yaml; empty for a table")
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

func (g *get) check(cmd *cobra.Command, args []string) error {
	what := resource(args[0])
	switch g.output {
	case "", "wide", "json", "yaml":
	default:
		return fmt.Errorf("--output %q is not wide, json or yaml", g.output)
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
	if g.namespace == "" && !g.allNamespaces {
		return errors.New("--namespace is empty: use --all-namespaces for all")
	}
	return nil
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
	default:
		ctx, cancel := s.request(ctx)
		defer cancel()
		response, err := s.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err != nil {
			return s.plain(err)
		}
		return show(opt, g, response, func(t *table) { t.status(response) })
	}
}

func (s *session) getPods(ctx context.Context, opt Options, g get, name string) error {
	if name != "" {
		ctx, cancel := s.request(ctx)
		defer cancel()
		response, err := s.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: g.namespace, Name: name})
		if err != nil {
			return s.plain(err)
		}
		return show(opt, g, response.GetPod(), func(t *table) { t.pods([]*schedulingv1.Pod{response.GetPod()}, false) })
	}
	namespace := g.namespace
	if g.allNamespaces {
		namespace = ""
	}
	all := &schedulingv1.ListPodsResponse{}
	for token := ""; ; {
		response, err := func() (*schedulingv1.ListPodsResponse, error) {
			ctx, cancel := s.request(ctx)
			defer cancel()
			return s.ListPods(ctx, &schedulingv1.ListPodsRequest{
				PageSize: listPage, PageToken: token, Namespace: namespace, Node: g.node, PendingOnly: g.pending,
			})
		}()
		if err != nil {
			return s.plain(err)
		}
		all.Pods = append(all.Pods, response.GetPods()...)
		all.Version = response.GetVersion()
		if token = response.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(all.GetPods()) == 0 && (g.output == "" || g.output == "wide") {
		where := "in namespace " + namespace
		if namespace == "" {
			where = "in any namespace"
		}
		_, err := fmt.Fprintln(opt.Err, "no such pods", where)
		return err
	}
	return show(opt, g, all, func(t *table) { t.pods(all.GetPods(), g.allNamespaces) })
}

func (s *session) getNodes(ctx context.Context, opt Options, g get, name string) error {
	if name != "" {
		ctx, cancel := s.request(ctx)
		defer cancel()
		response, err := s.GetNode(ctx, &schedulingv1.GetNodeRequest{Name: name})
		if err != nil {
			return s.plain(err)
		}
		return show(opt, g, response.GetNode(), func(t *table) { t.nodes([]*schedulingv1.Node{response.GetNode()}) })
	}
	all := &schedulingv1.ListNodesResponse{}
	for token := ""; ; {
		response, err := func() (*schedulingv1.ListNodesResponse, error) {
			ctx, cancel := s.request(ctx)
			defer cancel()
			return s.ListNodes(ctx, &schedulingv1.ListNodesRequest{PageSize: listPage, PageToken: token})
		}()
		if err != nil {
			return s.plain(err)
		}
		all.Nodes = append(all.Nodes, response.GetNodes()...)
		all.Version = response.GetVersion()
		if token = response.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(all.GetNodes()) == 0 && (g.output == "" || g.output == "wide") {
		_, err := fmt.Fprintln(opt.Err, "there are no nodes")
		return err
	}
	return show(opt, g, all, func(t *table) { t.nodes(all.GetNodes()) })
}

// show prints a message as JSON or YAML, or the table that fill makes of it.
func show(opt Options, g get, message proto.Message, fill func(*table)) error {
	var text []byte
	switch g.output {
	case "json", "yaml":
		var err error
		if text, err = render(message, g.output == "yaml"); err != nil {
			return err
		}
	default:
		t := newTable(g.output == "wide", opt.Now())
		fill(t)
		text = t.bytes()
	}
	if _, err := opt.Out.Write(text); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// render returns a message as JSON, with the same bytes every time, which protojson does not promise by itself.
func render(message proto.Message, asYAML bool) ([]byte, error) {
	raw, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	if asYAML {
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			return nil, fmt.Errorf("encode answer as YAML: %w", err)
		}
		return text, nil
	}
	var indented strings.Builder
	encoder := json.NewEncoder(&indented)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(json.RawMessage(raw)); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return []byte(indented.String()), nil
}
