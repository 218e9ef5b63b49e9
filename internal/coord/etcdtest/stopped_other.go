//go:build !linux

package etcdtest

import "time"

// awaitStopped gives the child time to stop: there is no portable way to wait for it.
func awaitStopped(int) error {
	time.Sleep(100 * time.Millisecond)
	return nil
}
