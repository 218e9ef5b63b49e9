// Berth-scv tells what the GPUs of its node are. It runs on each node, as a DaemonSet, asks NVIDIA's driver (NVML) for the cards, and writes what it says into the custom
// resource scvs.yoda.berth.dev that is named after the node, for Yoda (plugins/yoda) to place pods by. It places nothing and gives no card to anybody.
//
// # What a node needs
//
// The library libnvidia-ml.so.1 of the driver, in the container, and the devices /dev/nvidiactl and /dev/nvidia0 … that it opens: NVIDIA's container runtime sees to both
// for a container with NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility, unless it is configured to ignore that of containers that are not privileged
// (accept-nvidia-visible-devices-envvar-when-unprivileged = false). It need not be root, and needs no rights on the machine besides. A node without
// a library, a driver or a card is told with no cards, and looked at again with each interval, so that a library that comes into a volume is found. One that the runtime
// puts in is there from the start of a container or not at all. So where the driver is installed later, the container has to begin anew: it does, by /healthz, when the
// kernel has had the driver for 10 minutes (/proc/driver/nvidia/version), which is time for what installs the runtime's part, and there is no library. Where the runtime
// never puts one in, it begins anew each 10 minutes to 12, in vain: that is to be seen, since its GPUs are given to nobody.
//
// # When it writes
//
// At once when a card, or its health, is another one, or when the free memory of one has changed by --memory-step-mib or --memory-step-percent of its memory, whichever is
// more, but never more than once a second, or in 81 % of a shorter heartbeat. While one change comes after the other, the time between two writes doubles to 10 s; that a card has become unhealthy does not
// wait for it. Else it writes after 81 % to 99 % of --heartbeat, so that many nodes do not write together and none writes late. A write is given up after --heartbeat, or
// 10 s if that is more, and has what is known when its last request is sent. If it fails, it is tried again, after 1 to 30 s, since it may have been applied or not.
//
// Nothing is written before the driver has been asked for the first time, which can take it a while: what there is of the process before stays, for three heartbeats at most,
// as long as it is believed.
//
// # Memory
//
// What the driver reserves of a card's memory for itself is not told as the card's, since no program can have it, if the library says how much that is
// (nvmlDeviceGetMemoryInfo_v2, since 510). Before, it is in the total, and a pod that asks for all memory of a card fits nowhere.
//
// # When a card is unhealthy
//
//   - It has fallen off its bus, or the driver does not name it any more. It stays in the list until the collector is started anew, or until it is back;
//     of more than 64 cards those that are lost are forgotten. While one is lost, NVML is begun anew a minute later, and again each minute.
//   - The driver has told of a critical error of it (XID). Those that programs cause do not count: 13, 31, 43, 45, 68 and 109, as for NVIDIA's k8s-device-plugin. This holds
//     until the collector is started anew or the driver is loaded anew, which is seen by its having been away, or being of another version: what mended the card cannot be seen.
//     An error before the collector began is not known to it. One that the driver names no card of makes all cards unhealthy. So does it when the driver could not tell of
//     errors, as when a card falls off its bus, since there may have been some: until 300 readings in a row of a card were without fault.
//   - It has had uncorrected memory errors (ECC) since the driver was loaded, has memory that waits for a reset to be retired or remapped, or some that could not be remapped.
//   - It is partitioned (MIG): Yoda gives whole cards, or memory of them.
//   - The driver names another card by the same ID.
//   - The driver does not tell one of its values for another reason than that the card does not support it, which is told as 0; its memory is to be told in any case. What was
//     read before holds then.
//   - The driver is not loaded any more, or is of another version than the library.
//   - The driver has not answered for --driver-timeout, or with errors only. A reading that hangs is waited for, and no other is begun; when it ends, all is as the driver
//     says.
//
// # When /healthz fails
//
// When another process would do better: the program does not run on; or it has asked the driver with success, and since then the driver is of another version than the
// library, or readings have failed for 5 minutes; or the driver is loaded and there has been no library for 10 minutes. Of the others, if it was so from the beginning, a
// restart mends nothing, and the resource tells of it.
//
// # Flags
//
//	--node                 the name of the Node that this runs on (environment: NODE_NAME)
//	--kubeconfig           a kubeconfig file (default: as a pod in its cluster)
//	--listen               where to serve /healthz and /metrics, as host:port (0.0.0.0:9090)
//	--interval             how often the driver is asked: less than --driver-timeout, and at most 30s (1s)
//	--driver-timeout       how long the driver may give no answer before no card is told as healthy (10s)
//	--heartbeat            after how long the resource is written at the latest: whole seconds, 1s to 1h (1m)
//	--memory-step-mib      by how much the free memory of a card changes before that is written, in MiB … (256)
//	--memory-step-percent  … or in % of the card's memory, whichever is more (2)
//	--request-timeout      how long a request to the API server may take (10s)
//	--version              say what it was built from, a version and a commit, and end
//
// # Metrics
//
//	berth_scv_cards{health}                cards of the node, by health
//	berth_scv_readings_total{result}       readings: ok, absent (there is no driver), failed, or late (after --driver-timeout, if at all)
//	berth_scv_reading_seconds              how long readings took that have ended
//	berth_scv_writes_total{result}         writes of the resource: ok, failed
//	berth_scv_seconds_since_write          seconds since the resource was last written, or since the beginning
//	berth_scv_xids_total{xid,critical}     errors that the driver has told of, and whether they make a card unhealthy
//
// They and /healthz, which says 200 unless another process would do better, are served without TLS, to whoever reaches the port: they say how many cards there are, and
// which errors they had.
package main
