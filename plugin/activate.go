package plugin

import "github.com/berth-scheduler/berth/internal/placeserver"

// Activator has Berth try pods that wait, and ask about nodes again that have changed for the plugins. The zero Activator is ready, and Config.Activator has Berth hear of it. It is safe for concurrent use.
type Activator struct{ server placeserver.Server }

// Activate has pods tried at once, by their metadata.uid, whatever they wait for: kube-scheduler's Handle.Activate. Those that PreEnqueue has rejected are asked about again. It does not wait. Berth passes over those that do not wait, or are of a profile that uses no plugin of the process, and tries none that fails again at once more often
// than its backoff has it. Who restarts, or cuts the stream, may lose some, and Berth hears of 100,000 at a time: so it is for what is tried again anyway, some time.
func (a *Activator) Activate(uids ...string) { a.server.Activate(uids...) }

// Wake is Activate for when something has happened for which pods are worth trying that serve what is left of their backoff before, as behind any event of the cluster.
func (a *Activator) Wake(uids ...string) { a.server.Wake(uids...) }

// Changed says that nodes, by their metadata.name, have changed for plugins of the process by something that Berth does not know of: the health of a card that a custom resource tells, say. What Filter and Score have said of them so far does not hold any more, for pods of any kind, and they are asked again when it is needed. A plugin
// changes first what it judges by, and calls Changed then. It does not wait, and names the same node as often as you like. Names that no node has are passed over. Beyond 100,000 nodes that Berth has not heard of yet, all have changed, as they have for a stream that begins.
//
// It has no pod tried that fits nowhere: call Wake behind it, or Activate, and the pod is judged by what is so now. The answers of plugins to steps that return behind it come behind it, too. A pod that is being judged meanwhile is judged once more, and once only: what is said of a node may have changed when the pod is placed there, and Reserve tells.
func (a *Activator) Changed(nodes ...string) { a.server.Changed(nodes...) }
