package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/doctor"
	"github.com/berth-scheduler/berth/internal/roles"
)

func doctorCommand(in *CompiledIn) *cobra.Command {
	cl := clusterFlags{inPlace: true, asks: true, compiledIn: compiledInFlags{in: in}}
	var output string
	var within time.Duration
	var own doctor.Own
	var etcd roles.Common
	var proofs tlsFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what stands in the way of Berth in a cluster, before it takes over, and what to do about it; it changes nothing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output: %q: want text or json", output)
			}
			cl.cluster.Source, cl.election.allNames = "kube", true
			var found []doctor.Finding
			cfg := doctor.Config{Names: []string{cl.schedulerName}}
			if e := cl.election; e.elect {
				cfg.LeaseNamespace, cfg.LeaseName = e.namespace, e.name
			}
			// 1. The configuration is what needs no cluster.
			if err := cl.finish(cmd.Context(), cmd.Flags()); err != nil {
				found = append(found, doctor.Finding{Check: "configuration", Level: doctor.Fail, What: err.Error(), Fix: "change what it names; berth config convert reads older versions"})
			} else {
				cfg.Names, cfg.LeaseName, cfg.Coscheduling = nil, "", len(cl.completed.Coscheduling) > 0
				for _, p := range cl.completed.Profiles {
					cfg.Names = append(cfg.Names, p.SchedulerName)
				}
				if e := cl.cluster.Election; e != nil {
					cfg.LeaseNamespace, cfg.LeaseName = e.Namespace, e.Name
				}
				for _, note := range append(append([]string(nil), cl.completed.Notes...), cl.notes...) {
					found = append(found, doctor.Finding{Check: "configuration", Level: doctor.Note, What: note})
				}
				found = append(found, doctor.Finding{Check: "configuration", Level: doctor.OK, What: fmt.Sprintf("it is one that Berth runs by, of %d profiles", len(cfg.Names))})
			}
			if err := proofs.finish(etcd.EtcdEndpoints); err != nil {
				return err
			}
			// 2. The cluster.
			cfg.Kubeconfig, cfg.Master = cl.cluster.Kubeconfig, cl.cluster.Master
			ctx, cancel := context.WithTimeout(cmd.Context(), within)
			defer cancel()
			more, err := doctor.Run(ctx, cfg)
			found = append(found, more...)
			if err != nil {
				found = append(found, doctor.Finding{Check: "cluster", Level: doctor.Fail, What: "not all of it could be looked at: " + err.Error(), Fix: "see that --kubeconfig reaches the API server, and that --within is long enough"})
			}
			// 3. What is Berth's own.
			own.Endpoints, own.Prefix, own.TLS = etcd.EtcdEndpoints, etcd.EtcdPrefix, proofs.etcd
			found = append(found, doctor.RunOwn(ctx, own)...)
			if output == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(found)
			} else {
				err = writeFindings(cmd.OutOrStdout(), found)
			}
			if n := doctor.Failed(found); err == nil && n > 0 {
				err = fmt.Errorf("%d of %d findings stand in the way", n, len(found))
			}
			return err
		},
	}
	fs := c.Flags()
	cl.addAsked(fs, "the credentials that Berth would have", "Berth would place")
	fs.BoolVar(&cl.election.elect, "leader-elect", true, "place pods only while holding the Lease")
	cl.election.addLease(fs)
	fs.StringSliceVar(&etcd.EtcdEndpoints, "etcd-endpoints", nil, "the client URLs of Berth's own etcd, if it has one: how fast and how full it is")
	fs.StringVar(&etcd.EtcdPrefix, "etcd-prefix", "/berth/", "under which Berth's keys in it are")
	proofs.addEtcd(fs)
	fs.StringVar(&own.DataDir, "data-dir", "", "where an embedded etcd is to keep its data: how much room there is, and how fast the disk; a file of 200 KiB is written there, and taken away")
	fs.DurationVar(&within, "within", 5*time.Minute, "after how long to give up")
	fs.StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

// writeFindings writes findings for people.
func writeFindings(w io.Writer, found []doctor.Finding) error {
	for i, f := range found {
		if _, err := fmt.Fprintf(w, "%-4s  %s: %s\n", f.Level, f.Check, f.What); err != nil {
			return err
		}
		if f.Fix != "" && (i+1 == len(found) || found[i+1].Fix != f.Fix) { // what is to be done about several is said once
			if _, err := fmt.Fprintf(w, "      → %s\n", f.Fix); err != nil {
				return err
			}
		}
	}
	return nil
}
