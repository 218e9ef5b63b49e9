package plugin

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// What plugins have activated before Berth has begun, and since, Berth hears of, beside what it asks.
func TestBerthHearsOfWhatPluginsActivate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		activator := new(Activator)
		activator.Activate("early")
		l := bufconn.Listen(1 << 20)
		h := new(history)
		serve(t, Config{Listener: l, Plugins: []Plugin{stepping("A", h)}, Activator: activator})
		client := dial(t, "passthrough:plugins", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if d, err := client.Describe(t.Context(), nil); err != nil || !d.GetActivates() {
			t.Errorf("it describes itself as %v, %v", d, err)
		}
		p := opened(t, client)
		p.request(&pluginv1.PlaceRequest{HearsActivates: true, HearsChanges: true})
		p.expect("0 activates [early]")
		p.step(reserve, "u", "A")
		p.expect("2")
		activator.Activate("late")
		p.expect("0 activates [late]")
		activator.Wake("later")
		p.expect("0 wakes [later]")
		activator.Changed("n")
		p.expect("0 changes [n]")
		other := opened(t, client)
		other.request(&pluginv1.PlaceRequest{HearsChanges: true})
		other.expect("0 all changed")
		activator.Changed("m")
		other.expect("0 changes [m]")
		p.expect("0 changes [m]")
	})
}
