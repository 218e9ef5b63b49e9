// Package config reads kube-scheduler's configuration: KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1,
// decoded strictly, and defaulted and validated as kube-scheduler 1.36 does, with its texts. Complete makes of it what
// Berth's roles are told: one cluster.Profile per scheduler name, and the backoffs.
//
// What kube-scheduler has and Berth has not is never dropped in silence. A plugin that is not built is accepted where it
// stands by default; a configuration that names it is refused. Settings without a meaning in Berth are listed in
// Completed.Notes. DecodePluginServices reads which plugins of others there are besides, in processes of their own. Convert turns
// configurations of older versions, and legacy policies, into v1.
//
// The package reads no files and no flags, and knows nothing of how plugins work: it says which of them run, where, in
// which order and with which arguments.
package config
