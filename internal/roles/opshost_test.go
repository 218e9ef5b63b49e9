package roles

import "testing"

func TestOperatorsAskForNamesThatNobodyElseCanHave(t *testing.T) {
	e := &env{Common: Common{OpsListen: "ops.example:9090", Advertise: "binder-0.example:7070"}}
	for host, want := range map[string]bool{
		"127.0.0.1": true, "[::1]": true, "::1": true, "10.1.2.3": true, "localhost": true, "binder": true, "berth-binder.berth.svc": true,
		"member.berth.internal": true, "berth.berth.svc.cluster.local": true, "ops.example": true, "binder-0.example": true, "Binder-0.Example.": true,
		"": false, "evil.example": false, "svc.evil.example": false, "127.0.0.1.evil.example": false,
	} {
		if got := e.opsHost(host); got != want {
			t.Errorf("%q is allowed: %v, want %v", host, got, want)
		}
	}
}
