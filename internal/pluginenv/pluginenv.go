// Package pluginenv names what Berth says in the environment of a process with plugins that it runs itself.
package pluginenv

const (
	// Socket is the absolute path of the socket on which the process is to serve berth.plugin.v1.
	Socket = "BERTH_PLUGIN_SOCKET"
	// MetricsSocket is that of one on which it may serve what it measures, over HTTP, as text of Prometheus.
	MetricsSocket = "BERTH_PLUGIN_METRICS_SOCKET"
	// Kubeconfig is the absolute path of the file by which Berth reaches the API server. It is not set if there is none.
	Kubeconfig = "BERTH_PLUGIN_KUBECONFIG"
)
