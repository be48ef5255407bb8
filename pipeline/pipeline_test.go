package pipeline_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trill/adapters"
	"trill/engine"
	"trill/engine/message"
	"trill/engine/provider"
	"trill/engine/session"
	"trill/engine/tool"
	"trill/pipeline"
	"trill/storage"
	"trill/templates"
)

// chat is a platform that lives in the test: what was posted, and what goes
// wrong next.
type chat struct {
	mu     sync.Mutex
	posts  []adapters.OutboundMessage
	acks   []adapters.Reaction
	faults []error
	bell   chan struct{}
}

func newChat() *chat { return &chat{bell: make(chan struct{}, 1)} }

func (c *chat) Platform() adapters.Platform { return "chat" }
func (c *chat) About() string               { return "This is a test." }

func (c *chat) Split(text string) []string {
	return adapters.Split(text, 200, func(s string) int { return len(s) })
}

func (c *chat) Send(_ context.Context, m adapters.OutboundMessage) (adapters.MessageID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.ring()
	if len(c.faults) > 0 {
		err := c.faults[0]
		c.faults = c.faults[1:]
		if err != nil {
			var se *adapters.SendError
			if errors.As(err, &se) && se.Ambiguous {
				c.posts = append(c.posts, m) // it was posted, but nobody knows
			}
			return "", err
		}
	}
	c.posts = append(c.posts, m)
	return "", nil
}

func (c *chat) React(_ context.Context, r adapters.Reaction) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.ring()
	c.acks = append(c.acks, r)
	return nil
}

func (c *chat) ring() {
	select {
	case c.bell <- struct{}{}:
	default:
	}
}

// await waits until what was posted is as wanted.
func (c *chat) await(t *testing.T, what string, ok func([]adapters.OutboundMessage) bool) []adapters.OutboundMessage {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		c.mu.Lock()
		posts := slices.Clone(c.posts)
		c.mu.Unlock()
		if ok(posts) {
			return posts
		}
		select {
		case <-c.bell:
		case <-deadline:
			t.Fatalf("waiting for %s: posted so far %+v", what, posts)
		}
	}
}

func (c *chat) awaitText(t *testing.T, text string) adapters.OutboundMessage {
	t.Helper()
	var found adapters.OutboundMessage
	c.await(t, fmt.Sprintf("%q", text), func(ms []adapters.OutboundMessage) bool {
		i := slices.IndexFunc(ms, func(m adapters.OutboundMessage) bool { return strings.Contains(m.Text, text) })
		if i >= 0 {
			found = ms[i]
		}
		return i >= 0
	})
	return found
}

// model is a provider made of a function; the function sees the last message.
type model func(ctx context.Context, req provider.Request) (*provider.Response, error)

func (m model) Stream(ctx context.Context, req provider.Request, _ func(string)) (*provider.Response, error) {
	return m(ctx, req)
}

// echo answers with what it was asked, without the line that says by whom.
func echo(_ context.Context, req provider.Request) (*provider.Response, error) {
	last := req.Messages[len(req.Messages)-1]
	_, text, _ := strings.Cut(last.Text, "\n\n")
	return &provider.Response{Text: "echo: " + text, Model: "m", Usage: message.Usage{Input: 1, Output: 1}}, nil
}

// house is a whole pipeline over a real database.
type house struct {
	t    *testing.T
	dir  string
	chat *chat
	db   *storage.DB
	p    *pipeline.Pipeline
	ids  int
	conf func(*pipeline.Config, *engine.Config)
	m    model
}

func newHouse(t *testing.T, m model, conf func(*pipeline.Config, *engine.Config)) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir(), chat: newChat(), conf: conf, m: m}
	h.open()
	t.Cleanup(h.close)
	return h
}

func (h *house) open() {
	h.t.Helper()
	log := slog.New(slog.DiscardHandler)
	db, err := storage.Open(context.Background(), storage.Config{Dir: h.dir}, log)
	if err != nil {
		h.t.Fatal(err)
	}
	texts, err := templates.Chat()
	if err != nil {
		h.t.Fatal(err)
	}
	ec := engine.Config{Provider: h.m, Store: db}
	pc := pipeline.Config{
		Store:    db,
		Channels: map[adapters.Channel]pipeline.Channel{"chat": {Adapter: h.chat}},
		Access: pipeline.Access{Default: pipeline.RoleNone, Grants: []pipeline.Grant{
			{Who: "chat:alice", Role: pipeline.RoleMember}, {Who: "chat:bob", Role: pipeline.RoleMember},
			{Who: "chat:olga", Role: pipeline.RoleOperator}, {Who: "chat:oskar", Role: pipeline.RoleOperator},
			{Who: "chat:gast", Role: pipeline.RoleGuest},
		}},
		Workspace: func(id session.ID) (string, error) {
			dir := filepath.Join(h.dir, "workspaces", string(id))
			return dir, os.MkdirAll(dir, 0o700)
		},
		Texts: texts, Name: "Trill", Trigger: "@trill", Log: log,
		Backoff: pipeline.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond, Settle: time.Millisecond},
	}
	if h.conf != nil {
		h.conf(&pc, &ec)
	}
	if pc.Engine == nil {
		eng, err := engine.New(ec)
		if err != nil {
			h.t.Fatal(err)
		}
		pc.Engine = eng
	}
	p, err := pipeline.New(pc)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		h.t.Fatal(err)
	}
	h.db, h.p = db, p
}

func (h *house) close() {
	if h.db == nil {
		return
	}
	h.p.Stop(context.Background())
	if bad, err := h.db.Invariants(context.Background()); err != nil || len(bad) > 0 {
		h.t.Errorf("invariants: %v %v", bad, err)
	}
	if err := h.db.Close(); err != nil {
		h.t.Error(err)
	}
	h.db = nil
}

func (h *house) restart() { h.close(); h.open() }

// say posts a message as a person and returns it.
func (h *house) say(who, text string) adapters.InboundMessage {
	h.t.Helper()
	h.ids++
	m := adapters.InboundMessage{
		Channel: "chat", Platform: "chat", ID: adapters.MessageID(fmt.Sprint(h.ids)), ReplyTo: adapters.MessageID(fmt.Sprint(h.ids)),
		Kind: adapters.KindText, Room: "room", Sender: adapters.Person{ID: adapters.PersonID(who), Name: who}, Text: text,
	}
	h.accept(m)
	return m
}

func (h *house) accept(m adapters.InboundMessage) {
	h.t.Helper()
	if err := h.p.Accept(context.Background(), m); err != nil {
		h.t.Fatal(err)
	}
}

func TestMentionGetsOneAnswerToItsMessage(t *testing.T) {
	h := newHouse(t, echo, nil)
	m := h.say("alice", "@trill hello")
	got := h.chat.awaitText(t, "echo: hello")
	if got.ReplyTo != m.ReplyTo || got.Room != "room" || len(got.Key) != 64 {
		t.Errorf("posted %+v", got)
	}
	h.accept(m) // again
	h.restart()
	h.accept(m) // and after a restart
	h.say("alice", "@trill bye")
	h.chat.awaitText(t, "echo: bye")
	if posts := h.chat.await(t, "all", func([]adapters.OutboundMessage) bool { return true }); len(posts) != 2 {
		t.Errorf("posted %+v", posts)
	}
}

func TestWhatIsNotForTheBotLeavesNoText(t *testing.T) {
	h := newHouse(t, echo, nil)
	const needle = "xyzzy-plugh"
	ms := []adapters.InboundMessage{
		{Text: "no mention " + needle, Sender: adapters.Person{ID: "alice"}},
		{Text: "@trill from a stranger " + needle, Sender: adapters.Person{ID: "mallory", Name: "alice " + needle}},
		{Text: "@trill from a bot " + needle, Sender: adapters.Person{ID: "alice", Bot: true}},
		{Text: "@trill by itself " + needle, Sender: adapters.Person{ID: "alice", Self: true}},
		{Text: "@trill edited " + needle, Kind: adapters.KindEdit, Sender: adapters.Person{ID: "alice"}},
		{Text: "@trill system " + needle, Kind: adapters.KindSystem, Sender: adapters.Person{ID: "alice"}},
		{Text: "@trill reaction " + needle, Kind: adapters.KindReaction, Sender: adapters.Person{ID: "alice"}},
	}
	for i, m := range ms {
		m.Channel, m.ID, m.Room, m.RoomName = "chat", adapters.MessageID(fmt.Sprint("ignored-", i)), "room", needle
		if m.Kind == "" {
			m.Kind = adapters.KindText
		}
		h.accept(m)
	}
	h.say("alice", "@trill hello")
	h.chat.awaitText(t, "echo: hello")
	h.close()
	if posts := h.chat.posts; len(posts) != 1 {
		t.Errorf("posted %+v", posts)
	}
	for _, name := range []string{"trill.db", "trill.db-wal"} {
		data, err := os.ReadFile(filepath.Join(h.dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if strings.Contains(string(data), needle) {
			t.Errorf("%s holds text that was not for the bot", name)
		}
	}
	h.open()
	log, err := h.db.AuditLog(t.Context(), 10)
	if err != nil || len(log) != 1 || log[0].Class != "access_denied" || log[0].Person != "chat:mallory" {
		t.Errorf("audit %+v, %v", log, err)
	}
}

func TestTwoPeopleInOneRoomGetTheirOwnAnswers(t *testing.T) {
	release := make(chan struct{})
	first := make(chan struct{}, 1)
	h := newHouse(t, func(ctx context.Context, req provider.Request) (*provider.Response, error) {
		if strings.Contains(req.Messages[len(req.Messages)-1].Text, "from alice") {
			first <- struct{}{}
			<-release
		}
		return echo(ctx, req)
	}, nil)
	a := h.say("alice", "@trill from alice")
	<-first
	b := h.say("bob", "@trill from bob")
	close(release)
	if got := h.chat.awaitText(t, "echo: from alice"); got.ReplyTo != a.ReplyTo {
		t.Errorf("alice's answer replies to %s", got.ReplyTo)
	}
	if got := h.chat.awaitText(t, "echo: from bob"); got.ReplyTo != b.ReplyTo {
		t.Errorf("bob's answer replies to %s", got.ReplyTo)
	}
}

// probe is a tool that hands control to the test.
type probe struct {
	readOnly bool
	run      func(ctx context.Context) tool.Result
}

func (p probe) Spec() tool.Spec {
	return tool.Spec{Name: "probe", Description: "probe", ReadOnly: p.readOnly, Schema: json.RawMessage(`{"type":"object","properties":{}}`)}
}

func (p probe) Run(ctx context.Context, _ tool.Env, _ json.RawMessage) (tool.Result, error) {
	return p.run(ctx), ctx.Err()
}

// useTool calls the probe once per request, then answers with what it gave and
// everything that people said since.
func useTool(_ context.Context, req provider.Request) (*provider.Response, error) {
	var said []string
	result := ""
	for _, m := range req.Messages {
		switch m.Role {
		case message.User:
			_, text, _ := strings.Cut(m.Text, "\n\n")
			said = append(said, text)
		case message.Tool:
			result = m.Text
		}
	}
	if result == "" {
		return &provider.Response{Calls: []message.Call{{ID: "c1", Tool: "probe", Args: json.RawMessage(`{}`)}}, Model: "m"}, nil
	}
	return &provider.Response{Text: fmt.Sprintf("%s (%s)", result, strings.Join(said, "; ")), Model: "m"}, nil
}

func TestMessageToARunningSessionIsSteeredIn(t *testing.T) {
	inTool, release := make(chan struct{}), make(chan struct{})
	h := newHouse(t, useTool, func(_ *pipeline.Config, ec *engine.Config) {
		ec.Tools = []tool.Tool{probe{true, func(context.Context) tool.Result {
			close(inTool)
			<-release
			return tool.Result{Text: "looked"}
		}}}
	})
	a := h.say("alice", "@trill look")
	<-inTool
	h.say("alice", "@trill and be quick")
	// It is in the database before the tool goes on.
	for {
		rows, err := h.db.Open(t.Context(), adapters.ThreadKey{Channel: "chat", Room: "room"})
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 1 && rows[0].State == pipeline.Waiting {
			break
		}
	}
	close(release)
	if got := h.chat.awaitText(t, "looked (look; and be quick)"); got.ReplyTo != a.ReplyTo {
		t.Errorf("replies to %s", got.ReplyTo)
	}
	h.close()
	if n := len(h.chat.posts); n != 1 {
		t.Errorf("%d posts", n)
	}
}

func TestStopEndsARunAtOnceAndSaysSoOnce(t *testing.T) {
	inTool := make(chan struct{})
	h := newHouse(t, useTool, func(_ *pipeline.Config, ec *engine.Config) {
		ec.Tools = []tool.Tool{probe{false, func(ctx context.Context) tool.Result {
			close(inTool)
			<-ctx.Done()
			return tool.Result{}
		}}}
	})
	h.say("alice", "@trill work")
	<-inTool
	h.say("bob", "stop") // no mention is needed while it works
	h.chat.awaitText(t, "Stopped.")
	h.say("alice", "@trill /status")
	h.chat.awaitText(t, "not working on anything")
	h.close()
	if n := len(h.chat.posts); n != 2 {
		t.Errorf("posted %+v", h.chat.posts)
	}
}

func TestNewSessionStopsTheOldRunAndForgets(t *testing.T) {
	inTool := make(chan struct{})
	h := newHouse(t, useTool, func(_ *pipeline.Config, ec *engine.Config) {
		ec.Tools = []tool.Tool{probe{true, func(ctx context.Context) tool.Result {
			select {
			case <-inTool:
				return tool.Result{Text: "second"}
			default:
				close(inTool)
				<-ctx.Done()
				return tool.Result{}
			}
		}}}
	})
	h.say("alice", "@trill first request")
	<-inTool
	h.say("alice", "@trill /new")
	h.chat.awaitText(t, "fresh session")
	h.say("alice", "@trill second request")
	h.chat.awaitText(t, "second (second request)")
	h.close()
	if n := len(h.chat.posts); n != 2 {
		t.Errorf("posted %+v", h.chat.posts)
	}
}

// askFirst is a gate that wants a person for every change.
type askFirst struct{}

func (askFirst) Judge(_ context.Context, c tool.Call) tool.Verdict {
	if c.Spec.ReadOnly {
		return tool.Verdict{Decision: tool.Allow}
	}
	return tool.Verdict{Decision: tool.Ask, Reason: "it changes something"}
}

func askingHouse(t *testing.T, ran *int, conf func(*pipeline.Config)) *house {
	return newHouse(t, useTool, func(pc *pipeline.Config, ec *engine.Config) {
		ec.Tools = []tool.Tool{probe{false, func(context.Context) tool.Result { *ran++; return tool.Result{Text: "changed"} }}}
		ec.Gates = []tool.Gate{askFirst{}}
		if conf != nil {
			conf(pc)
		}
	})
}

func codeOf(t *testing.T, m adapters.OutboundMessage) string {
	t.Helper()
	_, rest, ok := strings.Cut(m.Text, "/approve ")
	if !ok {
		t.Fatalf("no code in %q", m.Text)
	}
	code, _, _ := strings.Cut(rest, "`")
	return code
}

func TestApprovalIsAskedInTheThread(t *testing.T) {
	for name, tt := range map[string]struct {
		by, verb string
		ran      int
		reply    string
		answer   string
	}{
		"operator approves":          {"olga", "approve", 1, "Approved", "changed (work)"},
		"operator denies":            {"olga", "deny", 0, "Denied", "Not allowed"},
		"member may not":             {"bob", "approve", 0, "takes the access of an operator", ""},
		"who asked may not":          {"alice", "approve", 0, "access of an operator", ""},
		"who asked may take it back": {"alice", "deny", 0, "Denied", "Not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			ran := 0
			h := askingHouse(t, &ran, nil)
			h.say("alice", "@trill work")
			code := codeOf(t, h.chat.awaitText(t, "May I run"))
			h.say("mallory", "/approve "+code) // a stranger: nothing
			h.say(tt.by, "/"+tt.verb+" "+strings.ToLower(code))
			h.chat.awaitText(t, tt.reply)
			if tt.answer != "" {
				h.chat.awaitText(t, tt.answer)
			}
			if ran != tt.ran {
				t.Errorf("ran %d times, want %d", ran, tt.ran)
			}
		})
	}
}

func TestStopEndsARunThatWaitsForAnApprovalWhenAllSlotsAreTaken(t *testing.T) {
	ran := 0
	hold := make(chan struct{})
	h := newHouse(t, func(ctx context.Context, req provider.Request) (*provider.Response, error) {
		if strings.Contains(req.Messages[len(req.Messages)-1].Text, "hold") {
			<-hold
			return echo(ctx, req)
		}
		return useTool(ctx, req)
	}, func(pc *pipeline.Config, ec *engine.Config) {
		ec.Tools = []tool.Tool{probe{false, func(context.Context) tool.Result { ran++; return tool.Result{Text: "changed"} }}}
		ec.Gates = []tool.Gate{askFirst{}}
		pc.MaxRuns = 1
	})
	h.say("alice", "@trill work")
	h.chat.awaitText(t, "May I run")
	h.accept(adapters.InboundMessage{ // takes the only slot meanwhile
		Channel: "chat", ID: "other", ReplyTo: "other", Kind: adapters.KindText, Room: "other", Sender: adapters.Person{ID: "bob"}, Text: "@trill hold",
	})
	h.say("alice", "/stop")
	h.chat.awaitText(t, "Stopped.")
	h.say("bob", "@trill /new")
	h.chat.awaitText(t, "fresh session")
	for {
		_, err := h.db.OpenRun(t.Context(), adapters.ThreadKey{Channel: "chat", Room: "room"})
		if errors.Is(err, pipeline.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(hold)
	h.chat.awaitText(t, "echo: hold")
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

func TestOperatorsDoNotApproveTheirOwn(t *testing.T) {
	ran := 0
	h := askingHouse(t, &ran, nil)
	h.say("olga", "@trill work")
	code := codeOf(t, h.chat.awaitText(t, "May I run"))
	h.say("olga", "/approve "+code)
	h.chat.awaitText(t, "somebody else has to approve")
	h.say("oskar", "/approve "+code)
	h.chat.awaitText(t, "changed (work)")
	h.say("oskar", "@trill /approve "+code)
	h.chat.awaitText(t, "settled already")
	if ran != 1 {
		t.Errorf("ran %d times", ran)
	}
}

func TestApprovalSurvivesARestart(t *testing.T) {
	ran := 0
	h := askingHouse(t, &ran, nil)
	h.say("alice", "@trill work")
	code := codeOf(t, h.chat.awaitText(t, "May I run"))
	h.restart()
	h.say("olga", "/approve "+code)
	h.chat.awaitText(t, "changed (work)")
	h.close()
	asked := 0
	for _, m := range h.chat.posts {
		if strings.Contains(m.Text, "May I run") {
			asked++
		}
	}
	if asked != 1 || ran != 1 {
		t.Errorf("asked %d times, ran %d times", asked, ran)
	}
}

func TestUnansweredApprovalExpiresAsDenial(t *testing.T) {
	ran := 0
	h := askingHouse(t, &ran, func(pc *pipeline.Config) { pc.ApprovalTimeout = 30 * time.Millisecond })
	h.say("alice", "@trill work")
	h.chat.awaitText(t, "nobody approved it in time")
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

func TestBrokenDeliveriesAreTriedAgain(t *testing.T) {
	busy := &adapters.SendError{Retry: true, Status: 503, Err: errors.New("503")}
	h := newHouse(t, echo, nil)
	h.chat.faults = []error{busy, busy, busy}
	h.say("alice", "@trill hello")
	h.chat.awaitText(t, "echo: hello")
	h.close()
	if n := len(h.chat.posts); n != 1 {
		t.Errorf("%d posts", n)
	}
}

func TestUnseenOutcomeIsTheOperatorsChoice(t *testing.T) {
	lost := &adapters.SendError{Retry: true, Ambiguous: true, Err: errors.New("connection reset")}
	for _, hold := range []bool{false, true} {
		h := newHouse(t, echo, func(pc *pipeline.Config, _ *engine.Config) {
			c := pc.Channels["chat"]
			c.HoldAmbiguous = hold
			pc.Channels["chat"] = c
		})
		h.chat.faults = []error{lost}
		h.say("alice", "@trill one")
		h.say("bob", "@trill two")
		h.chat.awaitText(t, "echo: two")
		h.close()
		keys := map[string]int{}
		for _, m := range h.chat.posts {
			keys[m.Key]++
		}
		if want := map[bool]int{false: 3, true: 2}[hold]; len(h.chat.posts) != want || len(keys) != 2 {
			t.Errorf("hold %v: posted %+v", hold, h.chat.posts)
		}
		h.open()
		held, err := h.db.Deliveries(t.Context(), pipeline.Held, 10)
		if err != nil || len(held) != map[bool]int{false: 0, true: 1}[hold] {
			t.Errorf("hold %v: held %+v, %v", hold, held, err)
		}
		h.close()
	}
}

func TestRefusedRoomIsLeftAlone(t *testing.T) {
	refused := &adapters.SendError{Scope: adapters.ScopeRoom, Status: 401, Err: errors.New("401: bot not enabled")}
	h := newHouse(t, echo, nil)
	h.chat.faults = []error{refused}
	h.say("alice", "@trill one")
	for len(h.p.Blocks()) == 0 {
		runtime.Gosched()
	}
	h.say("alice", "@trill two")
	h.restart()
	if n := len(h.chat.posts); n != 0 {
		t.Fatalf("posted into a room that refuses: %+v", h.chat.posts)
	}
	h.accept(adapters.InboundMessage{Channel: "chat", ID: "join", Kind: adapters.KindJoined, Room: "room"})
	h.chat.awaitText(t, "echo: one")
	h.chat.awaitText(t, "echo: two")
}

func TestLongAnswersArePostedInOrder(t *testing.T) {
	long := strings.Repeat("one two three four five six seven. ", 30)
	h := newHouse(t, func(context.Context, provider.Request) (*provider.Response, error) {
		return &provider.Response{Text: long + "the end", Model: "m"}, nil
	}, nil)
	busy := &adapters.SendError{Retry: true, Err: errors.New("503")}
	h.chat.faults = []error{nil, busy, busy}
	h.say("alice", "@trill talk")
	h.chat.awaitText(t, "the end")
	h.close()
	var parts []string
	for _, m := range h.chat.posts {
		parts = append(parts, m.Text)
	}
	if got := strings.Join(strings.Fields(strings.Join(parts, " ")), " "); got != strings.Join(strings.Fields(long+"the end"), " ") {
		t.Errorf("posted %q", parts)
	}
}

func TestRateLimitIsPoliteOnce(t *testing.T) {
	h := newHouse(t, echo, func(pc *pipeline.Config, _ *engine.Config) { pc.Limits.PersonPerHour = 2 })
	for i := range 6 {
		h.say("alice", fmt.Sprint("@trill ", i))
	}
	h.say("bob", "@trill bob")
	h.chat.awaitText(t, "echo: bob")
	h.chat.awaitText(t, "a lot at once")
	h.close()
	told := 0
	for _, m := range h.chat.posts {
		if strings.Contains(m.Text, "a lot at once") {
			told++
		}
		if strings.Contains(m.Text, "echo: 2") {
			t.Error("the third request was worked on")
		}
	}
	if told != 1 {
		t.Errorf("posted %+v", h.chat.posts)
	}
}

func TestSlowRunShowsThatItIsAtWork(t *testing.T) {
	release := make(chan struct{})
	h := newHouse(t, func(ctx context.Context, req provider.Request) (*provider.Response, error) {
		<-release
		return echo(ctx, req)
	}, func(pc *pipeline.Config, _ *engine.Config) {
		pc.Ack, pc.AckAfter, pc.StatusAfter = true, time.Millisecond, 2*time.Millisecond
	})
	m := h.say("alice", "@trill hello")
	if got := h.chat.awaitText(t, "still working"); !got.Silent {
		t.Error("the status message notifies people")
	}
	h.chat.await(t, "a reaction", func([]adapters.OutboundMessage) bool {
		h.chat.mu.Lock()
		defer h.chat.mu.Unlock()
		return len(h.chat.acks) > 0
	})
	close(release)
	h.chat.awaitText(t, "echo: hello")
	h.close()
	if len(h.chat.acks) != 1 || h.chat.acks[0].Message != m.ReplyTo || len(h.chat.posts) != 2 {
		t.Errorf("acks %+v, posts %+v", h.chat.acks, h.chat.posts)
	}
}

func TestRunThatKeepsBreakingIsGivenUp(t *testing.T) {
	h := newHouse(t, func(ctx context.Context, req provider.Request) (*provider.Response, error) {
		if strings.Contains(req.Messages[len(req.Messages)-1].Text, "poison") {
			panic("poison")
		}
		return echo(ctx, req)
	}, nil)
	h.say("alice", "@trill poison")
	h.chat.awaitText(t, "something inside me broke")
	h.say("alice", "@trill hello")
	h.chat.awaitText(t, "echo: hello")
}

func TestEachChainOfRepliesIsASessionOfItsOwn(t *testing.T) {
	h := newHouse(t, func(_ context.Context, req provider.Request) (*provider.Response, error) {
		var said []string
		for _, m := range req.Messages {
			if m.Role == message.User {
				_, text, _ := strings.Cut(m.Text, "\n\n")
				said = append(said, text)
			}
		}
		return &provider.Response{Text: "heard: " + strings.Join(said, ", "), Model: "m"}, nil
	}, func(pc *pipeline.Config, _ *engine.Config) {
		c := pc.Channels["chat"]
		c.ByReply = true
		pc.Channels["chat"] = c
	})
	h.say("alice", "@trill one")
	h.chat.awaitText(t, "heard: one")
	h.say("bob", "@trill two")
	h.chat.awaitText(t, "heard: two")
	reply := func(id, text string, q adapters.Quote) {
		h.accept(adapters.InboundMessage{
			Channel: "chat", ID: adapters.MessageID(id), ReplyTo: adapters.MessageID(id), Kind: adapters.KindText, Room: "room",
			Sender: adapters.Person{ID: "alice"}, Text: text, Quote: &q,
		})
	}
	self := adapters.Person{ID: "bot", Bot: true, Self: true}
	reply("r1", "three", adapters.Quote{ID: "unknown", Sender: self, Text: "heard: one"}) // to the bot's answer
	h.chat.awaitText(t, "heard: one, three")
	reply("r2", "@trill four", adapters.Quote{ID: "2", Sender: adapters.Person{ID: "bob"}, Text: "@trill two"}) // to bob's message
	h.chat.awaitText(t, "heard: two, four")
	reply("r3", "@trill five", adapters.Quote{ID: "r1", Sender: adapters.Person{ID: "alice"}, Text: "three"}) // further down
	h.chat.awaitText(t, "heard: one, three, five")
}

func TestCommands(t *testing.T) {
	project := t.TempDir()
	h := newHouse(t, echo, func(pc *pipeline.Config, _ *engine.Config) {
		pc.Projects = map[string]pipeline.Project{"website": {Path: project, Description: "the public site"}}
	})
	for _, tt := range []struct{ who, say, want string }{
		{"alice", "@trill", "Yes?"},
		{"alice", "@trill /help", "/switch-project"},
		{"alice", "@trill /status", "not working on anything"},
		{"alice", "@trill /usage", "has not used the model"},
		{"alice", "@trill /stop", "nothing to stop"},
		{"alice", "@trill /sessions", "no sessions yet"},
		{"alice", "@trill /approve", "no open question"},
		{"alice", "@trill /approve XXXXX", "no question with the code"},
		{"alice", "@trill /switch-project", "the public site"},
		{"alice", "@trill /switch-project nope", "no project `nope`"},
		{"alice", "@trill /switch-project website", "on the project `website`"},
		{"gast", "@trill /new", "do not have the access"},
		{"alice", "@trill /frobnicate now", "echo: /frobnicate now"},
		{"alice", "@trill /usage ", "has made 1 model calls"},
		{"alice", "@trill /sessions ", "/frobnicate now"},
		{"alice", "@trill /new", "still `website`"},
	} {
		h.say(tt.who, tt.say)
		h.chat.awaitText(t, tt.want)
	}
}

func TestMessagesAcceptedBeforeACrashAreAnsweredAfterIt(t *testing.T) {
	h := newHouse(t, echo, nil)
	h.p.Stop(context.Background()) // from here on nothing is worked on
	h.say("alice", "@trill one")
	h.say("bob", "@trill two")
	h.restart()
	h.chat.awaitText(t, "echo: one")
	h.chat.awaitText(t, "echo: two")
}
