package cli

import (
	"os"
	"syscall"
	"testing"
)

func TestTheFirstSignalEndsTheContextAndTheSecondTheProcess(t *testing.T) {
	exited := make(chan int, 1)
	ctx, stop := Interruptible(t.Context(), func(code int) { exited <- code })
	defer stop()
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGTERM)
	<-ctx.Done()
	select {
	case code := <-exited:
		t.Fatalf("the first signal exits with %d", code)
	default:
	}
	signal(syscall.SIGINT)
	if code := <-exited; code != 1 {
		t.Errorf("the second signal exits with %d, want 1", code)
	}
}
