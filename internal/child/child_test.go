package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestMain is the process, too, if its first argument says what that does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "say": // and end
			fmt.Println("a line")
			fmt.Fprintln(os.Stderr, strings.Repeat("x", 2*longestLine))
			fmt.Fprint(os.Stderr, "no end")
			os.Exit(7)
		case "leak":
			var all [][]byte
			for range 1 << 10 {
				piece := make([]byte, 1<<20)
				for i := range piece {
					piece[i] = 1
				}
				all = append(all, piece)
			}
			fmt.Println("leaked", len(all))
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		case "stay":
			fmt.Println("stays")
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// run runs the process, and returns its log, line by line. It has ended behind the test.
func run(t *testing.T, cfg Config) <-chan string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	cfg.Path, cfg.Log = program, slog.New(slog.NewTextHandler(w, nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, cfg)
		_ = w.Close()
	}()
	lines := make(chan string, 1000)
	read := make(chan struct{})
	go func() {
		defer close(read)
		in := bufio.NewScanner(r)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			lines <- in.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		<-read
	})
	return lines
}

// await waits for a line that has a text.
func await(t *testing.T, lines <-chan string, text string) string {
	t.Helper()
	hangs := time.NewTimer(5 * time.Minute)
	defer hangs.Stop()
	for {
		select {
		case line := <-lines:
			if strings.Contains(line, text) {
				return line
			}
		case <-hangs.C:
			t.Fatalf("no line with %q", text)
		}
	}
}

func TestAProcessThatEndsIsLoggedAndStartedAgain(t *testing.T) {
	lines := run(t, Config{Args: []string{"say"}})
	for range 2 {
		await(t, lines, `line="a line"`)
		if long := await(t, lines, "line=xxx"); strings.Count(long, "x") != longestLine {
			t.Errorf("a long line has %d bytes, want %d", strings.Count(long, "x"), longestLine)
		}
		await(t, lines, `line="no end"`)
		await(t, lines, "exit status 7")
	}
}

func TestAProcessWithTooMuchMemoryIsKilled(t *testing.T) {
	lines := run(t, Config{Args: []string{"leak"}, Memory: 200 << 20})
	await(t, lines, "it has more memory than it may have")
	await(t, lines, "it has more memory than it may have") // again
}

func TestAProcessThatDoesNotAnswerIsKilled(t *testing.T) {
	var asked atomic.Int32
	lines := run(t, Config{Args: []string{"stay"}, AliveEvery: 10 * time.Millisecond, Alive: func(context.Context) error {
		if n := asked.Add(1); n <= 12 && n%3 == 0 { // twice in a row is not yet too often
			return nil
		}
		return errors.New("busy")
	}})
	await(t, lines, "stays")
	await(t, lines, "it does not answer: busy")
	if n := asked.Load(); n < 12+mostSilent {
		t.Errorf("it was asked %d times, want %d at least", n, 12+mostSilent)
	}
	await(t, lines, "stays")
}

func TestManyLinesAreCountedInsteadOfLogged(t *testing.T) {
	var out strings.Builder
	l := newLines(slog.New(slog.NewTextHandler(&out, nil)))
	for range mostLines + 300 {
		_, _ = l.Write([]byte("spam\n"))
	}
	l.flush()
	if n := strings.Count(out.String(), "line=spam"); n < mostLines || n > mostLines+100 { // some may be logged again by then
		t.Errorf("%d lines were logged, want about %d", n, mostLines)
	}
	if !strings.Contains(out.String(), "lines of the process were left out") {
		t.Error("nothing says that lines were left out")
	}
}
