package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// changes are those of a copy of the cluster that the flags of a command say, in the order in which they were given.
type changes []func(in io.Reader) (*schedulingv1.Change, error)

// changeFlag adds a change of one kind each time it is given.
type changeFlag struct {
	to    *changes
	kind  string
	parse func(value string) (func(io.Reader) (*schedulingv1.Change, error), error)
}

func (f changeFlag) String() string { return "" }
func (f changeFlag) Type() string   { return f.kind }
func (f changeFlag) Set(value string) error {
	change, err := f.parse(value)
	if err == nil {
		*f.to = append(*f.to, change)
	}
	return err
}

func (c *changes) add(cmd *cobra.Command) {
	named := func(flag, usage string, change func(node string) *schedulingv1.Change) {
		cmd.Flags().Var(changeFlag{c, "NODE", func(node string) (func(io.Reader) (*schedulingv1.Change, error), error) {
			if node == "" {
				return nil, errors.New("want the name of a node")
			}
			return known(change(node)), nil
		}}, flag, usage)
	}
	cmd.Flags().Var(changeFlag{c, "like=NODE|file=FILE[,count=N]", parseAddNodes}, "add-nodes", "suppose these nodes more: like an existing one, or as manifests say")
	named("remove-node", "suppose this node gone, and with it its pods", func(node string) *schedulingv1.Change {
		return &schedulingv1.Change{Change: &schedulingv1.Change_RemoveNode{RemoveNode: node}}
	})
	named("cordon", "suppose this node cordoned", func(node string) *schedulingv1.Change {
		return &schedulingv1.Change{Change: &schedulingv1.Change_Cordon{Cordon: node}}
	})
	named("uncordon", "suppose this node uncordoned", func(node string) *schedulingv1.Change {
		return &schedulingv1.Change{Change: &schedulingv1.Change_Uncordon{Uncordon: node}}
	})
	named("drain", "suppose this node drained: its pods have to find other places", drained)
	cmd.Flags().Var(changeFlag{c, "NODE:KEY=VALUE", parseLabel}, "label", "suppose this label of a node; NODE:KEY- supposes that it is not there")
	cmd.Flags().Var(changeFlag{c, "FILE", parseConfiguration}, "config", "suppose that Berth ran with this KubeSchedulerConfiguration")
}

// known is a change that needs no file.
func known(change *schedulingv1.Change) func(io.Reader) (*schedulingv1.Change, error) {
	return func(io.Reader) (*schedulingv1.Change, error) { return change, nil }
}

func drained(node string) *schedulingv1.Change {
	return &schedulingv1.Change{Change: &schedulingv1.Change_Drain{Drain: node}}
}

// read returns the changes, and reads the files that they name.
func (c changes) read(in io.Reader) ([]*schedulingv1.Change, error) {
	all := make([]*schedulingv1.Change, 0, len(c))
	for _, change := range c {
		one, err := change(in)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// parseAddNodes reads like=NODE or file=FILE, and count=N.
func parseAddNodes(value string) (func(io.Reader) (*schedulingv1.Change, error), error) {
	add := &schedulingv1.AddNodes{}
	file := ""
	for part := range strings.SplitSeq(value, ",") {
		key, text, _ := strings.Cut(part, "=")
		switch key {
		case "like":
			add.Like = text
		case "file":
			file = text
		case "count":
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("count=%s is not a number above 0", text)
			}
			add.Count = int32(n)
		default:
			return nil, fmt.Errorf("%q is not like=NODE, file=FILE or count=N", part)
		}
	}
	if (add.GetLike() == "") == (file == "") {
		return nil, errors.New("want either like=NODE or file=FILE, and count=N if it is not 1")
	}
	return func(in io.Reader) (*schedulingv1.Change, error) {
		if file != "" {
			var err error
			if add.Manifests, err = readManifests([]string{file}, in); err != nil {
				return nil, err
			}
		}
		return &schedulingv1.Change{Change: &schedulingv1.Change_AddNodes{AddNodes: add}}, nil
	}, nil
}

// parseLabel reads NODE:KEY=VALUE, or NODE:KEY- as kubectl label does.
func parseLabel(value string) (func(io.Reader) (*schedulingv1.Change, error), error) {
	node, label, found := strings.Cut(value, ":")
	key, text, set := strings.Cut(label, "=")
	remove := false
	if !set {
		key, remove = strings.CutSuffix(label, "-")
	}
	if !found || node == "" || key == "" || !set && !remove {
		return nil, errors.New("want NODE:KEY=VALUE, or NODE:KEY- to remove a label")
	}
	return known(&schedulingv1.Change{Change: &schedulingv1.Change_LabelNode{
		LabelNode: &schedulingv1.LabelNode{Node: node, Key: key, Value: text, Remove: remove},
	}}), nil
}

func parseConfiguration(file string) (func(io.Reader) (*schedulingv1.Change, error), error) {
	if file == "" {
		return nil, errors.New("want a file")
	}
	return func(in io.Reader) (*schedulingv1.Change, error) {
		text, err := readFile(file, in)
		return &schedulingv1.Change{Change: &schedulingv1.Change_Configuration{Configuration: text}}, err
	}, nil
}

// readManifests reads files as the text of one request; no files are no text.
func readManifests(files []string, in io.Reader) (string, error) {
	if len(files) == 0 {
		return "", nil
	}
	documents, err := readDocuments(files, in)
	if err != nil {
		return "", err
	}
	parts := requests(documents)
	if len(parts) > 1 {
		return "", fmt.Errorf("%s: more than %d MiB of manifests are too much for one question", strings.Join(files, ", "), maxRequest>>20)
	}
	return parts[0].text(), nil
}
