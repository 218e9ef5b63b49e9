package roles

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// methods returns the full names of all RPCs that are compiled in and that Berth's servers may have.
func methods() []string {
	var all []string
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if p := string(f.Package()); !strings.HasPrefix(p, "berth.") && !strings.HasPrefix(p, "grpc.health.") && !strings.HasPrefix(p, "grpc.reflection.") {
			return true
		}
		if f.Package() == "berth.plugin.v1" { // others serve it
			return true
		}
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				all = append(all, "/"+string(service.FullName())+"/"+string(service.Methods().Get(j).Name()))
			}
		}
		return true
	})
	return all
}

func TestEveryRPCSaysWhoServesItAndWhoMayCallIt(t *testing.T) {
	all := methods()
	if len(all) < 25 {
		t.Fatalf("found %d RPCs, want all of Berth's, health and reflection: %v", len(all), all)
	}
	for _, method := range all {
		served := map[coord.Role]bool{}
		for _, row := range rights {
			if !slices.Contains(row.methods, method) {
				continue
			}
			if len(row.callers) == 0 || len(row.servers) == 0 {
				t.Errorf("%s has a row without callers or servers", method)
			}
			for _, server := range row.servers {
				if served[server] {
					t.Errorf("%s: who may call it at a %s is said twice", method, server)
				}
				served[server] = true
				if !slices.Contains(everyRole, server) {
					t.Errorf("%s: a %q serves nothing", method, server)
				}
			}
		}
		if len(served) == 0 {
			t.Errorf("%s: nobody may serve or call it; say in rights who may", method)
		}
	}
	for _, row := range rights {
		for _, method := range row.methods {
			if !slices.Contains(all, method) {
				t.Errorf("%s is in rights, and no RPC", method)
			}
		}
	}
}

func TestOnlyHealthAndTheGatewaysPublicAPIAreOpenToCallersWithoutACertificate(t *testing.T) {
	for _, role := range everyRole {
		for method, callers := range callersAt(role) {
			open := slices.Contains(callers, rpc.Anyone[0])
			public := strings.HasPrefix(method, "/grpc.health.") ||
				role == coord.RoleGateway && (strings.HasPrefix(method, "/berth.scheduling.") || strings.HasPrefix(method, "/grpc.reflection."))
			if open != public {
				t.Errorf("%s at a %s: open to all %v, want %v", method, role, open, public)
			}
		}
	}
}
