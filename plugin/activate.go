package plugin

import "github.com/berth-scheduler/berth/internal/placeserver"

// Activator has Berth try pods that wait. The zero Activator is ready, and Config.Activator has Berth hear of it. It is safe for concurrent use.
type Activator struct{ server placeserver.Server }

// Activate has pods tried at once, by their metadata.uid, whatever they wait for: kube-scheduler's Handle.Activate. Those that PreEnqueue has rejected are asked about again. It does not wait. Berth passes over those that do not wait, or are of a profile that uses no plugin of the process, and tries none that fails again at once more often
// than its backoff has it. Who restarts, or cuts the stream, may lose some, and Berth hears of 100,000 at a time: so it is for what is tried again anyway, some time.
func (a *Activator) Activate(uids ...string) { a.server.Activate(uids...) }

// Wake is Activate for when something has happened for which pods are worth trying that serve what is left of their backoff before, as behind any event of the cluster.
func (a *Activator) Wake(uids ...string) { a.server.Wake(uids...) }
