package command

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestPeersThatMakeNoSenseAreRefused(t *testing.T) {
	const three = "--peers=127.0.0.1:10270,203.0.113.2:10270,203.0.113.3:10270"
	files := []string{"--peer-cert=c", "--peer-key=k", "--peer-ca=a"}
	for name, c := range map[string]struct {
		args []string
		data string
		etcd []string
		want string // "": it is taken
	}{
		"none":            {},
		"three":           {args: append(files, three), data: "d"},
		"said":            {args: append(files, three, "--peer-address=203.0.113.3:10270"), data: "d"},
		"no peers":        {args: files, want: "--peers, which is not given"},
		"no folder":       {args: append(files, three), want: "needs --data-dir"},
		"etcd":            {args: append(files, three), data: "d", etcd: []string{"x"}, want: "--etcd-endpoints"},
		"no files":        {args: []string{three}, data: "d", want: "--peer-cert"},
		"two":             {args: append(files, "--peers=127.0.0.1:1,203.0.113.2:1"), data: "d", want: "want 3 or 5"},
		"a name":          {args: append(files, "--peers=127.0.0.1:1,b:1,203.0.113.2:1"), data: "d", want: `--peers: "b:1": want the IP address`},
		"no next port":    {args: append(files, "--peers=127.0.0.1:65535,203.0.113.2:1,203.0.113.3:1"), data: "d", want: "the next one is for roles"},
		"the same port":   {args: append(files, "--peers=127.0.0.1:5,127.0.0.1:6,203.0.113.3:1"), data: "d", want: "want the same port"},
		"another":         {args: append(files, three, "--peer-address=203.0.113.4:10270"), data: "d", want: "is not among --peers"},
		"not here":        {args: append(files, "--peers=203.0.113.1:1,203.0.113.2:1,203.0.113.3:1"), data: "d", want: "0 are addresses of this machine"},
		"more than one":   {args: append(files, "--peers=127.0.0.1:1,127.0.0.1:5,203.0.113.3:1"), data: "d", want: "2 are addresses of this machine"},
		"not even a port": {args: append(files, "--peers=127.0.0.1,127.0.0.1:5,203.0.113.3:1"), data: "d", want: "want the IP address of one machine and a port"},
	} {
		t.Run(name, func(t *testing.T) {
			var f peerFlags
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			f.add(fs)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			p, err := f.of(c.data, c.etcd)
			switch {
			case c.want != "":
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v does not say %q", err, c.want)
				}
			case err != nil:
				t.Error(err)
			case name == "none" && p != nil || name == "three" && p.Self != "127.0.0.1:10270" || name == "said" && p.Self != "203.0.113.3:10270":
				t.Errorf("peers %+v", p)
			}
		})
	}
}
