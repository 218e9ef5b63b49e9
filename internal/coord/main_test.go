package coord

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Between several members, etcd leaves connections to their timeouts.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"), goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	)
}
