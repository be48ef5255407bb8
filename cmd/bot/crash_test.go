package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"trill/adapters"
	"trill/adapters/nextcloudtalk/talktest"
	"trill/engine/provider/openai/openaitest"
	"trill/engine/session"
	"trill/pipeline"
)

// child is the program as the test binary runs it: the real one, or, when a kill
// is wanted, the service with a store that kills the process around a write.
func child(args string) int {
	var list []string
	if err := json.Unmarshal([]byte(args), &list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kill := os.Getenv("TRILL_TEST_KILL")
	if kill == "" || list[0] != "serve" {
		return run(ctx, helper, list, os.Stdin, os.Stdout, os.Stderr)
	}
	when, nth, _ := strings.Cut(kill, " ")
	n, err := strconv.ParseInt(nth, 10, 64)
	if err == nil {
		e := &env{ctx: ctx, helper: helper, config: list[len(list)-1], err: os.Stderr}
		err = serveKilled(e, func(s store) store { return &killer{store: s, before: when == "before", nth: n} })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bot:", err)
		return exitFailed
	}
	return exitOK
}

func serveKilled(e *env, tap func(store) store) error {
	cfg, err := e.load()
	if err != nil {
		return err
	}
	a, err := newApp(e.ctx, cfg, e.helper, e.err, tap)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", cfg.Server.Listen)
	if err != nil {
		return err
	}
	return a.serve(e.ctx, ln)
}

// killer is a store that kills its process before or after the nth write.
type killer struct {
	store
	before bool
	nth    int64
	writes atomic.Int64
}

// around runs a write between the two places where the process may die.
func (k *killer) around(write func() error) error {
	n := k.writes.Add(1)
	die := func() {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	if n == k.nth && k.before {
		die()
	}
	err := write()
	if n == k.nth && !k.before {
		die()
	}
	return err
}

func (k *killer) Append(ctx context.Context, evs ...session.Event) error {
	return k.around(func() error { return k.store.Append(ctx, evs...) })
}

func (k *killer) Accept(ctx context.Context, rows []pipeline.InboxRow) (ids []pipeline.InboxID, err error) {
	err = k.around(func() error { ids, err = k.store.Accept(ctx, rows); return err })
	return ids, err
}

func (k *killer) Wait(ctx context.Context, id pipeline.InboxID) error {
	return k.around(func() error { return k.store.Wait(ctx, id) })
}

func (k *killer) Settle(ctx context.Context, s pipeline.Settle) error {
	return k.around(func() error { return k.store.Settle(ctx, s) })
}

func (k *killer) StartRun(ctx context.Context, s pipeline.StartRun) (r pipeline.Run, err error) {
	err = k.around(func() error { r, err = k.store.StartRun(ctx, s); return err })
	return r, err
}

func (k *killer) Steer(ctx context.Context, s pipeline.Steer) (evs []session.Event, err error) {
	err = k.around(func() error { evs, err = k.store.Steer(ctx, s); return err })
	return evs, err
}

func (k *killer) FinishRun(ctx context.Context, f pipeline.FinishRun) error {
	return k.around(func() error { return k.store.FinishRun(ctx, f) })
}

func (k *killer) AskApproval(ctx context.Context, a pipeline.Approval, ds []pipeline.Delivery) (ap pipeline.Approval, err error) {
	err = k.around(func() error { ap, err = k.store.AskApproval(ctx, a, ds); return err })
	return ap, err
}

func (k *killer) Enqueue(ctx context.Context, ds []pipeline.Delivery) error {
	return k.around(func() error { return k.store.Enqueue(ctx, ds) })
}

func (k *killer) UpdateDelivery(ctx context.Context, from pipeline.DeliveryState, d pipeline.Delivery) error {
	return k.around(func() error { return k.store.UpdateDelivery(ctx, from, d) })
}

func (k *killer) SetBlock(ctx context.Context, b pipeline.Block) error {
	return k.around(func() error { return k.store.SetBlock(ctx, b) })
}

func (k *killer) LiftBlock(ctx context.Context, ch adapters.Channel, room adapters.RoomID) error {
	return k.around(func() error { return k.store.LiftBlock(ctx, ch, room) })
}

// keepAlive starts the service again whenever it has died, without a kill, until
// the returned function is called.
func (s *service) keepAlive() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			s.mu.Lock()
			gone := s.gone
			s.mu.Unlock()
			select {
			case <-quit:
				return
			case <-gone:
				s.kill = ""
				s.start()
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// quiet waits until nothing is open any more.
func (s *service) quiet() {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		resp, err := http.Get("http://" + s.addr + "/metrics")
		if err != nil {
			continue // it is being started again
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && !slices.ContainsFunc([]string{
			"trill_inbox_open 0", "trill_runs_open 0", `trill_outbox{state="pending"} 0`, `trill_outbox{state="sending"} 0`, `trill_outbox{state="ambiguous"} 0`,
		}, func(want string) bool { return !strings.Contains(string(text), want+"\n") }) {
			return
		}
	}
	s.t.Fatal("something stays open")
}

// deliver posts a message and delivers it again until the bot has taken it, as a
// person or a platform would that got no answer.
func (s *service) deliver(room, who, text string) int64 {
	s.t.Helper()
	d, err := s.cloud.Post(context.Background(), room, "users/"+who, text, talktest.PostOptions{})
	for deadline := time.Now().Add(30 * time.Second); err != nil || d.Status != http.StatusOK; {
		if time.Now().After(deadline) {
			s.t.Fatalf("the bot does not take %q: %d %v", text, d.Status, err)
		}
		id := d.ID
		if d.Body == nil {
			s.t.Fatal("no body to deliver again")
		}
		time.Sleep(5 * time.Millisecond) // until the process is there again
		d, err = s.cloud.DeliverAs(context.Background(), d.Header, d.Body)
		d.ID = id
	}
	return d.ID
}

// TestKilledAroundEveryWrite kills the service with -9 before and after each of
// its writes, in a conversation with a tool, an approval and two people, and
// looks at what the people see.
func TestKilledAroundEveryWrite(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the service many times")
	}
	for _, when := range []string{"before", "after"} {
		for n := 1; n < 100; n++ {
			if !killedAt(t, when, n) {
				t.Logf("%d writes", n-1)
				break
			}
			if t.Failed() {
				return
			}
		}
	}
}

// killedAt plays the conversation and reports whether the process was killed.
func killedAt(t *testing.T, when string, n int) (killed bool) {
	t.Run(fmt.Sprintf("%s write %d", when, n), func(t *testing.T) {
		s := newService(t, "[engine.sandbox]\nmode = \"off\"\n")
		s.channel(`account = "reader"`, `app_password = "reader-password"`)
		s.cloud.AddParticipant("room1", "reader")
		s.kill = fmt.Sprintf("%s %d", when, n)
		s.model.Handle(conversation)
		s.start()
		s.mu.Lock()
		first := s.cmd
		s.mu.Unlock()
		stop := s.keepAlive()

		alice := s.deliver("room1", "alice", "@trill work")
		question := s.await("May I run")
		_, rest, _ := strings.Cut(question.Text, "/approve ")
		code, _, _ := strings.Cut(rest, "`")
		bob := s.deliver("room1", "bob", "@trill hello")
		s.deliver("room1", "olga", "/approve "+code)
		done := s.await("work is done")
		hello := s.await("hello bob")
		s.await("Approved")
		s.quiet()
		stop()
		killed = first.ProcessState != nil
		s.settled()

		if done.ReplyTo != alice || hello.ReplyTo != bob {
			t.Errorf("replies go to %d and %d, want %d and %d", done.ReplyTo, hello.ReplyTo, alice, bob)
		}
		if got := s.posted("room1"); len(got) != 4 {
			t.Errorf("the people see %d messages, want 4: %q", len(got), got)
		}
		if ran := effects(t, s.dir); ran > 1 {
			t.Errorf("the tool had its effect %d times", ran)
		} else if ran == 0 && !strings.Contains(done.Text, "unknown") {
			t.Errorf("the tool never ran, and the answer is %q", done.Text)
		}
	})
	return killed
}

// conversation is a model that appends a line to a file, once, and then says what
// it was told.
func conversation(r *openaitest.Request) openaitest.Reply {
	last := r.Messages[len(r.Messages)-1]
	switch {
	case last.Role == "tool" && strings.Contains(last.Text(), "interrupted"):
		return openaitest.Text("work is done, its effect unknown", 1)
	case last.Role == "tool":
		return openaitest.Text("work is done", 1)
	case strings.HasSuffix(last.Text(), "hello"):
		return openaitest.Text("hello bob", 1)
	}
	return openaitest.Calls(openaitest.Call{ID: "call_1", Name: "shell", Args: `{"command":"echo ran >> log.txt"}`})
}

// effects counts the lines that the tool has left.
func effects(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "data", "workspaces", "*", "log.txt"))
	if err != nil || len(files) > 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	n := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(data), "\n")
	}
	return n
}

// TestRunThatIsCutOffIsAnsweredByTheNextStart ends the process in the middle of a
// stream, with -9 (K6, K7) and as an operator would (K23), which exits with 0.
func TestRunThatIsCutOffIsAnsweredByTheNextStart(t *testing.T) {
	for name, end := range map[string]func(*service){
		"killed":     func(s *service) { s.end(syscall.SIGKILL) },
		"terminated": (*service).stop, // after the grace period of the configuration
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, "")
			hold, asked := make(chan struct{}), make(chan struct{}, 10)
			var calls atomic.Int64
			s.model.Handle(func(*openaitest.Request) openaitest.Reply {
				asked <- struct{}{}
				if calls.Add(1) == 1 {
					return openaitest.Stream(openaitest.Content("half an ans"), openaitest.Hold(hold))
				}
				return openaitest.Text("the whole answer", 2)
			})
			s.start()
			s.say("room1", "alice", "@trill hello")
			<-asked
			end(s)
			close(hold)
			s.start()
			s.await("the whole answer")
			s.settled()
			if got := s.posted("room1"); !slices.Equal(got, []string{"the whole answer"}) {
				t.Errorf("posted %q", got)
			}
		})
	}
}

// TestKilledWhileAnAnswerIsOnTheWire dies after the request reached the server and
// before its answer came back (K16-K18). What people see then is the operator's
// choice, unless an account can look.
func TestKilledWhileAnAnswerIsOnTheWire(t *testing.T) {
	for policy, want := range map[string]int{"resend": 2, "hold": 1, "account": 1} {
		t.Run(policy, func(t *testing.T) {
			s := newService(t, "")
			if policy == "account" {
				s.channel(`account = "reader"`, `app_password = "reader-password"`)
				s.cloud.AddParticipant("room1", "reader")
			} else {
				s.channel(fmt.Sprintf("ambiguous = %q", policy))
			}
			s.start()
			s.cloud.DropNext(1) // posted, but the connection is cut
			killed := make(chan struct{})
			s.cloud.Latency(func(r *http.Request) {
				select {
				case <-killed:
				default:
					if r.Method == http.MethodPost {
						defer close(killed)
						s.mu.Lock()
						defer s.mu.Unlock()
						s.cmd.Process.Kill()
					}
				}
			})
			s.say("room1", "alice", "@trill hello")
			<-killed
			s.end(syscall.SIGKILL)
			s.await("hello")
			s.start()
			s.say("room1", "bob", "@trill bye")
			s.await("bye")
			s.settled()
			refs := map[string]int{}
			for _, p := range s.cloud.Messages("room1") {
				refs[p.ReferenceID]++
			}
			if got := len(s.cloud.Messages("room1")) - 1; got != want || len(refs) != 2 {
				t.Errorf("the answer was posted %d times, want %d: %q", got, want, s.posted("room1"))
			}
			out, _ := s.bot("outbox", "list", "-state", "held")
			if held := strings.Contains(out, "held"); held != (policy == "hold") {
				t.Errorf("held: %v\n%s", held, out)
			}
		})
	}
}
