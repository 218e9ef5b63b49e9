// Package rpc builds every gRPC server and client of Berth, so that all of them agree on the same things:
// recovery from panics, logs, metrics, traces, deadlines, retries, keepalive, message limits, health,
// reflection, and how an error crosses the wire (see [Error]).
//
// Roles are wired the same way in one process and in many; only the [Network] differs:
//
//	cfg := rpc.Config{Net: rpc.TCP(), Log: log, Metrics: registry}
//	server := rpc.NewServer(cfg, "filter-worker")
//	filterv1.RegisterFilterServiceServer(server.Registrar(), handlers)
//	listener, err := cfg.Net.Listen(":7101")
//	...
//	server.Health().Set("", true, "")
//	err = server.Serve(ctx, listener) // until ctx ends
//
//	clients := rpc.NewClients(cfg)
//	conn, err := clients.Conn("10.0.0.7:7101")
//	worker := filterv1.NewFilterServiceClient(conn)
//
// [ServeOps] is the HTTP side of a process: metrics, liveness and readiness.
//
// The package knows no service of Berth and imports no other Berth package. It does not discover peers, does not
// balance load, and does not choose which peer to ask next. With [Config.TLS], connections are encrypted and each side
// checks the other's role call by call.
package rpc
