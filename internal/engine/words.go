package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Short says in plain words what a rejection means, after the number of its nodes.
func (r *Rejection) Short() string {
	if p := PluginOf(r.Plugin); p != nil && p.short != nil {
		return p.short(r)
	}
	return r.byPlugin()
}

func (r *Rejection) byPlugin() string {
	return plural(int(r.Nodes), "is", "are") + " rejected by " + r.Plugin
}

// Text says in plain words what a node lacks, with the numbers. By is the pod that is in the way.
func (l *Lack) Text(by Blocker) string {
	if p := PluginOf(l.Plugin); p != nil && p.text != nil {
		return p.text(l, by)
	}
	return l.Reason
}

// inWords returns what says one thing of one node and another of several.
func inWords(one, many string) func(*Rejection) string {
	return func(r *Rejection) string { return plural(int(r.Nodes), one, many) }
}

// wording is what is said of nodes that are rejected for reasons that begin and end so.
type wording struct{ begin, end, one, many string }

// because returns what is said of nodes, however many, if the reason is nothing of theirs.
func because(begin, end, text string) wording {
	text = "because " + text
	return wording{begin, end, text, text}
}

// byReason returns what says of nodes whatever there is for their reasons, each once, in the order of the table: of a reason the first that is about it.
func byReason(table ...wording) func(*Rejection) string {
	return func(r *Rejection) string {
		says := make([]string, len(table))
		for _, v := range r.Reasons {
			k := slices.IndexFunc(table, func(w wording) bool {
				return strings.HasPrefix(v.Reason, w.begin) && strings.HasSuffix(v.Reason, w.end)
			})
			if k >= 0 {
				says[k] = plural(int(r.Nodes), table[k].one, table[k].many)
			}
		}
		says = slices.DeleteFunc(says, func(text string) bool { return text == "" })
		if len(says) == 0 {
			return r.byPlugin()
		}
		return strings.Join(says, " or ")
	}
}

// always returns what says the same of every lack.
func always(text string) func(*Lack, Blocker) string {
	return func(*Lack, Blocker) string { return text }
}

// String says where the pod is that is in the way; "" if there is none.
func (by Blocker) String() string {
	if by.Name == "" {
		return ""
	}
	return fmt.Sprintf("%s/%s on %s", by.Namespace, by.Name, by.Node)
}

// behind returns where the pod is that is in the way, behind a text; "" if there is none.
func (by Blocker) behind(text string) string {
	if by.Name == "" {
		return ""
	}
	return text + by.String()
}

// or returns where the pod is that is in the way, or what stands for it if there is none.
func (by Blocker) or(other string) string {
	if by.Name == "" {
		return other
	}
	return by.String()
}

// missing says that a node does not have the label that a rule needs.
func (l *Lack) missing(rule string) string {
	return fmt.Sprintf("label %s is missing, and the pod's %s needs it", l.TopologyKey, rule)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// TaintText writes a taint as kubectl does.
func TaintText(t cluster.Taint) string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// maxSaid is how many values of a requirement, and terms, a text says, if there are more than one more: a volume may have thousands.
const maxSaid = 3

// some joins what a text says of a list, and how many more there are.
func some(list []string, separator, last string, most int) string {
	if len(list) <= most+1 {
		return strings.Join(list, separator)
	}
	return strings.Join(list[:most], separator) + last + strconv.Itoa(len(list)-most) + " more"
}

// RequirementText writes a requirement as a label selector, of many values some.
func RequirementText(r *cluster.Requirement) string {
	values := some(r.Values, ", ", " and ", maxSaid)
	switch r.Operator {
	case "In":
		if len(r.Values) == 1 {
			return r.Key + "=" + values
		}
		return r.Key + " in (" + values + ")"
	case "NotIn":
		return r.Key + " not in (" + values + ")"
	case "Exists":
		return r.Key
	case "DoesNotExist":
		return "!" + r.Key
	case "Gt":
		return r.Key + ">" + values
	case "Lt":
		return r.Key + "<" + values
	}
	return r.Key + " " + r.Operator + " " + values
}

func termsText(terms []cluster.PodTerm) string {
	var out []string
	for k := range terms {
		var of []string
		for r := range terms[k].Selector.Requirements {
			of = append(of, RequirementText(&terms[k].Selector.Requirements[r]))
		}
		switch {
		case terms[k].Selector.Nothing:
			of = []string{"nothing"}
		case len(of) == 0:
			of = []string{"every pod"}
		}
		out = append(out, strings.Join(of, ","))
	}
	return strings.Join(out, " and ")
}

// AmountText writes a quantity of a resource as Kubernetes does.
func AmountText(name string, value int64) string {
	switch {
	case name == "cpu":
		return resource.NewMilliQuantity(value, resource.DecimalSI).String()
	case name == "memory", name == "ephemeral-storage", strings.HasPrefix(name, "hugepages-"):
		return resource.NewQuantity(value, resource.BinarySI).String()
	}
	return strconv.FormatInt(value, 10)
}
