package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func applyCommand(opt Options) *cobra.Command {
	var c connection
	var files []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or update nodes, pods, services and the like of the local source",
		Long: "Apply sends manifests (YAML or JSON; Namespace, Node, Pod, Service, ReplicationController, ReplicaSet,\n" +
			"StatefulSet, PodDisruptionBudget and PodGroup objects, and what volumes are made of: PersistentVolume, PersistentVolumeClaim,\n" +
			"StorageClass, CSINode, CSIDriver, CSIStorageCapacity and VolumeAttachment; or a List of them) to Berth. All of them\n" +
			"are checked before any of them is written. Of services and controllers only the selectors count: nothing makes pods\n" +
			"of a ReplicaSet. Nor does anything compute how many disruptions a PodDisruptionBudget allows, or make a volume:\n" +
			"status.disruptionsAllowed says the former, and manifests of PersistentVolumes are all the volumes there are.",
		Example: "  " + opt.Program + " apply -f cluster.yaml\n  kubectl get nodes -o json | " + opt.Program + " apply -f - --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			documents, err := readDocuments(files, opt.In)
			if err != nil {
				return err
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.apply(cmd.Context(), opt, requests(documents), dryRun) })
		},
	}
	c.add(cmd, opt)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, `file with manifests, "-" for standard input; may be repeated`)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check, and say what would be done")
	_ = cmd.MarkFlagRequired("filename") // fails only for a flag that does not exist
	return cmd
}

// apply sends the requests in order. Several are checked first, since the server can only check each before it writes it.
func (s *session) apply(ctx context.Context, opt Options, all []request, dryRun bool) error {
	if len(all) > 1 && !dryRun {
		for _, r := range all {
			if _, err := s.applyOne(ctx, r, true); err != nil {
				return err
			}
		}
	}
	note := ""
	if dryRun {
		note = " (dry run)"
	}
	for i, r := range all {
		response, err := s.applyOne(ctx, r, dryRun)
		if err != nil && i > 0 {
			return fmt.Errorf("%w\nwhat is listed above was applied; applying everything again is safe", err)
		}
		if err != nil {
			return err
		}
		for _, o := range response.GetObjects() {
			if _, err := fmt.Fprintf(opt.Out, "%s %s%s\n", title(o.GetKind(), o.GetNamespace(), o.GetName()), o.GetResult(), note); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
		}
	}
	return nil
}

func (s *session) applyOne(ctx context.Context, r request, dryRun bool) (*schedulingv1.ApplyResponse, error) {
	ctx, cancel := s.request(ctx)
	defer cancel()
	response, err := s.Apply(ctx, &schedulingv1.ApplyRequest{Manifests: r.text(), DryRun: dryRun})
	if violations := rpc.Violations(err); len(violations) > 0 {
		for i := range violations {
			violations[i].Field = r.locate(violations[i].Field)
		}
		return nil, errors.New(listed(violations))
	}
	return response, s.plain(err)
}

// locate turns the path of a field in a request into where a person finds it: documents[3].spec.x into the file and line of
// the document, and spec.x.
func (r request) locate(field string) string {
	rest, found := strings.CutPrefix(field, "documents[")
	if !found {
		return field
	}
	number, path, found := strings.Cut(rest, "]")
	i, err := strconv.Atoi(number)
	if !found || err != nil || i < 0 || i >= len(r.documents) {
		return field
	}
	if path = strings.TrimPrefix(path, "."); path == "" {
		return r.documents[i].String()
	}
	return r.documents[i].String() + ": " + path
}

// title is kind and name as kubectl prints them, with the namespace if there is one.
func title(kind, namespace, name string) string {
	if namespace != "" {
		return strings.ToLower(kind) + "/" + namespace + "/" + name
	}
	return strings.ToLower(kind) + "/" + name
}

func deleteCommand(opt Options) *cobra.Command {
	var c connection
	var files []string
	var namespace string
	var ignoreNotFound bool
	cmd := &cobra.Command{
		Use:     "delete (KIND NAME | -f FILE)",
		Short:   "Remove nodes, pods, services and the like of the local source",
		Example: "  " + opt.Program + " delete pod web-1 -n shop\n  " + opt.Program + " delete -f cluster.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(files) > 0 && len(args) > 0:
				return errors.New("delete takes either KIND and NAME, or -f")
			case len(files) == 0 && len(args) != 2:
				return errors.New("delete takes KIND and NAME, or -f")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var targets []*schedulingv1.DeleteRequest
			if len(files) > 0 {
				documents, err := readDocuments(files, opt.In)
				if err != nil {
					return err
				}
				if targets, err = named(documents); err != nil {
					return err
				}
			} else {
				kind, err := parseKind(args[0])
				if err != nil {
					return err
				}
				if !namespaced(kind) {
					namespace = ""
				} else if namespace == "" {
					if namespace, err = opt.Namespace(); err != nil {
						return err
					}
				}
				targets = []*schedulingv1.DeleteRequest{{Kind: kind, Namespace: namespace, Name: args[1]}}
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.delete(cmd.Context(), opt, targets, ignoreNotFound) })
		},
	}
	c.add(cmd, opt)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, `file with manifests of what to delete, "-" for standard input; may be repeated`)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the object (default: default, or that of the kubeconfig's context)")
	cmd.Flags().BoolVar(&ignoreNotFound, "ignore-not-found", false, "what is not there is no error")
	return cmd
}

// delete removes all targets, as far as it can. The error has a line for each that it could not.
func (s *session) delete(ctx context.Context, opt Options, targets []*schedulingv1.DeleteRequest, ignoreNotFound bool) error {
	var errs []error
	for _, target := range targets {
		err := func() error {
			ctx, cancel := s.request(ctx)
			defer cancel()
			_, err := s.Delete(ctx, target)
			return err
		}()
		switch code := status.Code(err); {
		case code == codes.NotFound && ignoreNotFound:
		case code == codes.OK:
			if _, err := fmt.Fprintf(opt.Out, "%s deleted\n", title(target.GetKind(), target.GetNamespace(), target.GetName())); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
		case code == codes.NotFound || code == codes.InvalidArgument:
			errs = append(errs, s.plain(err))
		default: // it would be the same for the others
			return errors.Join(append(errs, s.plain(err))...)
		}
	}
	return errors.Join(errs...)
}

// named returns what documents name, last first: what was applied later may lean on what was applied earlier.
func named(documents []document) ([]*schedulingv1.DeleteRequest, error) {
	var targets []*schedulingv1.DeleteRequest
	for _, d := range documents {
		var object head
		if err := yaml.Unmarshal([]byte(d.text), &object); err != nil {
			return nil, fmt.Errorf("%v: %w", d, err)
		}
		if !strings.HasSuffix(object.Kind, "List") {
			target, err := object.target(d)
			if err != nil {
				return nil, err
			}
			targets = append(targets, target)
			continue
		}
		items, err := splitList(d)
		if err != nil {
			return nil, err
		}
		more, err := named(items)
		if err != nil {
			return nil, err
		}
		for i := range more { // in order again, until the whole is turned round
			targets = append(targets, more[len(more)-1-i])
		}
	}
	for i, j := 0, len(targets)-1; i < j; i, j = i+1, j-1 {
		targets[i], targets[j] = targets[j], targets[i]
	}
	return targets, nil
}

func (h head) target(d document) (*schedulingv1.DeleteRequest, error) {
	kind, err := parseKind(h.Kind)
	if err != nil {
		return nil, fmt.Errorf("%v: kind: %w", d, err)
	}
	if h.Metadata.Name == "" {
		return nil, fmt.Errorf("%v: metadata.name: required", d)
	}
	namespace := h.Metadata.Namespace
	if !namespaced(kind) {
		namespace = ""
	}
	return &schedulingv1.DeleteRequest{Kind: kind, Namespace: namespace, Name: h.Metadata.Name}, nil
}

// kinds are the kinds of the objects that Berth keeps, with the names that kubectl knows them by.
var kinds = []struct {
	kind  string
	names []string
}{
	{"Pod", []string{"pod", "pods", "po"}},
	{"Node", []string{"node", "nodes", "no"}},
	{"Namespace", []string{"namespace", "namespaces", "ns"}},
	{"Service", []string{"service", "services", "svc"}},
	{"ReplicationController", []string{"replicationcontroller", "replicationcontrollers", "rc"}},
	{"ReplicaSet", []string{"replicaset", "replicasets", "rs"}},
	{"StatefulSet", []string{"statefulset", "statefulsets", "sts"}},
	{"PodDisruptionBudget", []string{"poddisruptionbudget", "poddisruptionbudgets", "pdb"}},
	{"PersistentVolume", []string{"persistentvolume", "persistentvolumes", "pv"}},
	{"PersistentVolumeClaim", []string{"persistentvolumeclaim", "persistentvolumeclaims", "pvc"}},
	{"StorageClass", []string{"storageclass", "storageclasses", "sc"}},
	{"CSINode", []string{"csinode", "csinodes"}},
	{"CSIDriver", []string{"csidriver", "csidrivers"}},
	{"CSIStorageCapacity", []string{"csistoragecapacity", "csistoragecapacities"}},
	{"VolumeAttachment", []string{"volumeattachment", "volumeattachments"}},
	{"PodGroup", []string{"podgroup", "podgroups"}},
}

func namespaced(kind string) bool { return !slices.Contains(inNoNamespace, kind) }

// inNoNamespace are the kinds whose objects are in no namespace.
var inNoNamespace = []string{"Node", "Namespace", "PersistentVolume", "StorageClass", "CSINode", "CSIDriver", "VolumeAttachment"}

func parseKind(name string) (string, error) {
	var known []string
	for _, k := range kinds {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k.kind, nil
		}
		known = append(known, k.names[0])
	}
	last := len(known) - 1
	return "", fmt.Errorf("%q is not a kind that Berth keeps: want %s or %s", name, strings.Join(known[:last], ", "), known[last])
}
