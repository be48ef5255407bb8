package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trill/adapters/nextcloudtalk/talktest"
	"trill/engine/provider/openai/openaitest"
	"trill/engine/sandbox"
	"trill/storage"
)

// childArgs in the environment makes the test binary the program itself, so that
// tests can run it as a process and kill it.
const childArgs = "TRILL_TEST_ARGS"

// helper lets commands of the service under test be confined.
var helper sandbox.Helper

func TestMain(m *testing.M) {
	helper = sandbox.Main()
	if args := os.Getenv(childArgs); args != "" {
		os.Exit(child(args))
	}
	os.Exit(m.Run())
}

const testSecret = "0123456789abcdef0123456789abcdef0123456789abcdef"

// service is the program as a process, between a Nextcloud and a model server
// that the test controls.
type service struct {
	t     *testing.T
	dir   string
	conf  string // the configuration file
	addr  string
	cloud *talktest.Server
	model *openaitest.Server
	kill  string // where the process kills itself; see crash_test.go

	mu   sync.Mutex // guards what follows
	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has ended
	log  *bytes.Buffer
}

// newService prepares a service without starting it. more is added to its
// configuration.
func newService(t *testing.T, more string) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), addr: freeAddr(t), log: new(bytes.Buffer)}
	s.cloud = talktest.New(talktest.Config{Secret: testSecret, Accounts: map[string]string{"reader": "reader-password"}})
	cloudURL, err := s.cloud.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.cloud.Close() })
	webhook := "http://" + s.addr + "/api/webhooks/cloud"
	s.cloud.SetBot(webhook)
	if s.model, err = openaitest.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.model.Close)
	s.conf = filepath.Join(s.dir, "trill.toml")
	s.write(fmt.Sprintf(`
[server]
listen = %q
shutdown_grace = "2s"
[models.default]
provider = "openai"
base_url = %q
api_key = "env:TEST_MODEL_KEY"
model = "echo"
[chat]
ack = false
[channels.cloud]
platform = "nextcloud-talk"
url = %q
secret = "env:TEST_TALK_SECRET"
webhook_url = %q
[[access.grant]]
who = "cloud:users/alice"
role = "member"
[[access.grant]]
who = "cloud:users/bob"
role = "member"
[[access.grant]]
who = "cloud:users/olga"
role = "operator"
%s`, s.addr, s.model.URL(), cloudURL, webhook, more))
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("log of the service:\n%s", s.log)
		}
	})
	return s
}

func (s *service) write(config string) {
	s.t.Helper()
	if err := os.WriteFile(s.conf, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// channel adds lines to the configuration of the channel.
func (s *service) channel(lines ...string) {
	s.t.Helper()
	config, err := os.ReadFile(s.conf)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(strings.Replace(string(config), "[channels.cloud]", "[channels.cloud]\n"+strings.Join(lines, "\n"), 1))
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// command is the program with arguments.
func (s *service) command(args ...string) *exec.Cmd {
	raw, err := json.Marshal(args)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), childArgs+"="+string(raw), "TEST_MODEL_KEY=sk-test-key-0123456789", "TEST_TALK_SECRET="+testSecret, "TRILL_TEST_KILL="+s.kill)
	return cmd
}

// bot runs a subcommand to its end.
func (s *service) bot(args ...string) (out string, code int) {
	s.t.Helper()
	cmd := s.command(append(args, "-config", s.conf)...)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// start starts the service and waits until it is ready, or gone.
func (s *service) start() {
	s.t.Helper()
	cmd := s.command("serve", "-config", s.conf)
	s.mu.Lock()
	cmd.Stdout, cmd.Stderr = s.log, s.log
	gone := make(chan struct{})
	s.cmd, s.gone = cmd, gone
	s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { cmd.Wait(); close(gone) }()
	for {
		resp, err := http.Get("http://" + s.addr + "/readyz")
		if err == nil {
			resp.Body.Close()
			return
		}
		select {
		case <-gone:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// end ends the process with a signal and returns its exit code.
func (s *service) end(sig syscall.Signal) int {
	s.mu.Lock()
	cmd, gone := s.cmd, s.gone
	s.mu.Unlock()
	if cmd == nil || cmd.Process == nil {
		return 0
	}
	cmd.Process.Signal(sig)
	<-gone
	return cmd.ProcessState.ExitCode()
}

// stop ends the service as an operator would.
func (s *service) stop() {
	s.t.Helper()
	if code := s.end(syscall.SIGTERM); code != 0 {
		s.t.Errorf("the service ended with code %d", code)
	}
}

// say posts a message as a person and returns its id; the bot must take it.
func (s *service) say(room, who, text string) int64 {
	s.t.Helper()
	d, err := s.cloud.Post(context.Background(), room, "users/"+who, text, talktest.PostOptions{})
	if err != nil || d.Status != http.StatusOK {
		s.t.Fatalf("post %q: %d %v", text, d.Status, err)
	}
	return d.ID
}

// await waits for a message of the bot that contains text.
func (s *service) await(text string) talktest.Posted {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p, err := s.cloud.WaitFor(ctx, func(p talktest.Posted) bool { return strings.Contains(p.Text, text) })
	if err != nil {
		s.t.Fatalf("waiting for %q: %v", text, err)
	}
	return p
}

// posted returns what the bot has posted to a room.
func (s *service) posted(room string) []string {
	var texts []string
	for _, p := range s.cloud.Messages(room) {
		texts = append(texts, p.Text)
	}
	return texts
}

// settled stops the service and checks what must hold of its database.
func (s *service) settled() {
	s.t.Helper()
	s.stop()
	db, err := storage.Open(context.Background(), storage.Config{Dir: filepath.Join(s.dir, "data"), ReadOnly: true}, discardLog())
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	if err := db.Integrity(context.Background()); err != nil {
		s.t.Error(err)
	}
	if bad, err := db.Invariants(context.Background()); err != nil || len(bad) > 0 {
		s.t.Errorf("invariants: %v %v", bad, err)
	}
}

// webhook sends a request to the service as it is.
func (s *service) webhook(path string, header http.Header, body io.Reader) int {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.addr+"/api/webhooks/"+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = slices.Clone(v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestSignedMentionGetsOneSignedReply is the main job, and A01 and A02: the same
// webhook again is the same message, also after a restart and after kill -9.
func TestSignedMentionGetsOneSignedReply(t *testing.T) {
	s := newService(t, "")
	s.start()
	d, err := s.cloud.Post(t.Context(), "room1", "users/alice", "@Trill, hello", talktest.PostOptions{})
	if err != nil || d.Status != http.StatusOK {
		t.Fatalf("%d %v", d.Status, err)
	}
	got := s.await("hello")
	if got.ReplyTo != d.ID || len(got.ReferenceID) != 64 {
		t.Errorf("posted %+v", got)
	}
	again := func() {
		t.Helper()
		if d, err := s.cloud.DeliverAs(t.Context(), d.Header, d.Body); err != nil || d.Status != http.StatusOK {
			t.Errorf("the same again: %d %v", d.Status, err)
		}
		if d, err := s.cloud.Deliver(t.Context(), d.Body); err != nil || d.Status != http.StatusOK {
			t.Errorf("the same, signed anew: %d %v", d.Status, err)
		}
	}
	again()
	s.stop()
	s.start()
	again()
	s.end(syscall.SIGKILL)
	s.start()
	again()
	s.say("room1", "alice", "@trill bye")
	s.await("bye")
	s.settled()
	if got := s.posted("room1"); len(got) != 2 {
		t.Errorf("posted %q", got)
	}
}

func TestWhatIsNotFromTheServerIsRefused(t *testing.T) {
	s := newService(t, "")
	s.start()
	if _, err := s.cloud.Enable(t.Context(), "room1"); err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"type":"Create","actor":{"type":"Person","id":"users\/alice","name":"Alice"},"object":{"type":"Note","id":"7","name":"message","content":"{\"message\":\"@trill hi\",\"parameters\":[]}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"room1","name":"Room"}}`)
	signed := func(body []byte) http.Header { return s.cloud.Sign(body) }
	evil := signed(body)
	evil.Set("X-Nextcloud-Talk-Backend", "https://evil.example/")
	wrong := signed(body)
	wrong.Set("X-Nextcloud-Talk-Signature", strings.Repeat("ab", 32))
	short := signed(body)
	short.Set("X-Nextcloud-Talk-Signature", short.Get("X-Nextcloud-Talk-Signature")[:62])
	twice := signed(body)
	twice.Add("X-Nextcloud-Talk-Signature", twice.Get("X-Nextcloud-Talk-Signature"))
	second := append(slices.Clone(body), []byte(`{"type":"Create"}`)...)
	double := bytes.Replace(body, []byte(`"id":"7"`), []byte(`"id":"7","id":"8"`), 1)
	nested := []byte(strings.Repeat("[", 1<<19) + strings.Repeat("]", 1<<19))
	for _, tt := range []struct {
		name   string
		path   string
		header http.Header
		body   []byte
		want   int
	}{
		{"unknown channel", "nobody", signed(body), body, 404},
		{"no signature", "cloud", http.Header{}, body, 401},
		{"bad signature", "cloud", wrong, body, 401},
		{"A07 signature cut short", "cloud", short, body, 401},
		{"A07 signature given twice", "cloud", twice, body, 401},
		{"altered body", "cloud", signed(body), bytes.Replace(body, []byte("hi"), []byte("ho"), 1), 401},
		{"A06 other server", "cloud", evil, body, 401},
		{"broken JSON", "cloud", signed([]byte("{")), []byte("{"), 400},
		{"A04 second object behind the first", "cloud", signed(second), second, 400},
		{"A05 the same key twice", "cloud", signed(double), double, 400},
		{"A11 deeply nested", "cloud", signed(nested), nested, 400},
		{"A11 10 MB", "cloud", signed(body), bytes.Repeat([]byte("x"), 10<<20), 413},
	} {
		if got := s.webhook(tt.path, tt.header, bytes.NewReader(tt.body)); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	upper := signed(body)
	upper.Set("X-Nextcloud-Talk-Signature", strings.ToUpper(upper.Get("X-Nextcloud-Talk-Signature")))
	if got := s.webhook("nextcloud-talk", upper, bytes.NewReader(body)); got != 200 {
		t.Errorf("A07 upper case, under the platform's name: %d", got)
	}
	s.await("hi")
	s.settled()
	if got := s.posted("room1"); len(got) != 1 {
		t.Errorf("posted %q", got)
	}
}

func TestOnlyMentionsStartSomething(t *testing.T) {
	s := newService(t, "")
	s.start()
	for _, text := range []string{
		"@trillium zebra", "mail me at a@trill.example zebra", "`@trill` zebra in code", "a quoted \"@trill zebra\"", "> @trill zebra", "nothing for it zebra",
	} {
		s.say("room1", "alice", text)
	}
	s.say("room1", "mallory", "@trill zebra from a stranger")                                                                               // A13
	if d, err := s.cloud.Post(t.Context(), "room1", "guests/0a0a", "@trill zebra", talktest.PostOptions{}); err != nil || d.Status != 200 { // A14
		t.Errorf("guest: %d %v", d.Status, err)
	}
	if d, err := s.cloud.Post(t.Context(), "room1", "users/eve", "@trill zebra", talktest.PostOptions{Name: "alice"}); err != nil || d.Status != 200 { // A54
		t.Errorf("borrowed name: %d %v", d.Status, err)
	}
	s.say("room1", "alice", "tell me the time @Trill,")
	s.await("tell me the time")
	s.settled()
	if got := s.posted("room1"); len(got) != 1 {
		t.Errorf("posted %q", got)
	}
	for _, name := range []string{"trill.db", "trill.db-wal"} {
		data, err := os.ReadFile(filepath.Join(s.dir, "data", name))
		if err == nil && bytes.Contains(data, []byte("zebra")) {
			t.Errorf("%s holds text that was not for the bot", name)
		}
	}
}

func TestServerThatIsDownForAWhileGetsTheAnswerOnce(t *testing.T) {
	s := newService(t, "")
	s.start()
	s.cloud.FailNext(3, http.StatusServiceUnavailable)
	s.say("room1", "alice", "@trill hello")
	s.await("hello")
	s.settled()
	if got := s.posted("room1"); len(got) != 1 {
		t.Errorf("posted %q", got)
	}
}

func TestModelThatMisbehavesEndsInAnAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		replies []openaitest.Reply
		want    string
	}{
		"429": {[]openaitest.Reply{openaitest.Failure(429, "rate_limit_exceeded", "slow down").WithHeader("Retry-After", "0")}, "hello"},
		"500": {[]openaitest.Reply{openaitest.Failure(500, "server_error", "oops")}, "hello"},
		"cut": {[]openaitest.Reply{openaitest.Stream(openaitest.Content("hal"), openaitest.Cut())}, "hello"},
		"malformed arguments": {[]openaitest.Reply{
			openaitest.Calls(openaitest.Call{ID: "c1", Name: "read_file", Args: `{"path": "a`}), openaitest.Text("recovered from arguments", 1),
		}, "recovered from arguments"},
		"unknown tool": {[]openaitest.Reply{
			openaitest.Calls(openaitest.Call{ID: "c1", Name: "teleport", Args: `{}`}), openaitest.Text("recovered from tool", 1),
		}, "recovered from tool"},
		"401 that echoes the key (A80)": {[]openaitest.Reply{openaitest.Failure(401, "invalid_api_key", "sk-test-key-0123456789 is wrong")}, "refuses my credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, "")
			s.model.Script(tt.replies...)
			s.start()
			s.say("room1", "alice", "@trill hello")
			s.await(tt.want)
			s.settled()
			if got := s.posted("room1"); len(got) != 1 {
				t.Errorf("posted %q", got)
			}
			if strings.Contains(s.log.String()+strings.Join(s.posted("room1"), ""), "sk-test-key") {
				t.Error("the key was seen")
			}
		})
	}
}

func TestTwoPeopleAtOnceGetTheirOwnReplies(t *testing.T) {
	s := newService(t, "")
	release := make(chan struct{})
	s.model.Handle(func(r *openaitest.Request) openaitest.Reply {
		_, text, _ := strings.Cut(r.Last(), "\n\n")
		if text == "from alice" {
			return openaitest.Stream(openaitest.Hold(release)).With(openaitest.Text("to alice", 1).Parts...)
		}
		return openaitest.Text("to bob", 1)
	})
	s.start()
	a := s.say("room1", "alice", "@trill from alice")
	b := s.say("room1", "bob", "@trill from bob")
	close(release)
	if p := s.await("to alice"); p.ReplyTo != a {
		t.Errorf("alice's message is %d, the reply goes to %d", a, p.ReplyTo)
	}
	if p := s.await("to bob"); p.ReplyTo != b {
		t.Errorf("bob's message is %d, the reply goes to %d", b, p.ReplyTo)
	}
	s.settled()
}

func TestBadSetUpIsOneClearLine(t *testing.T) {
	s := newService(t, "")
	good, err := os.ReadFile(s.conf)
	if err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	file := filepath.Join(s.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, config, want string }{
		{"port in use", string(good), "address already in use"},
		{"unknown key", "[bot]\ntriger = \"@x\"\n" + string(good), `did you mean "trigger"?`},
		{"missing variable", strings.Replace(string(good), "env:TEST_TALK_SECRET", "env:TEST_NOT_SET", 1), "TEST_NOT_SET"},
		{"A12 empty secret", strings.Replace(string(good), "env:TEST_TALK_SECRET", "", 1), "channels.cloud.secret"},
		{"data folder that cannot be", fmt.Sprintf("[bot]\ndata_dir = %q\n%s", filepath.Join(file, "data"), good), "data_dir"},
	} {
		s.write(tt.config)
		out, code := s.bot("serve")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		last := lines[len(lines)-1]
		if code != 1 || !strings.Contains(last, tt.want) || strings.Contains(out, "goroutine") {
			t.Errorf("%s: code %d, output\n%s", tt.name, code, out)
		}
		if errs := slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "bot: ") }); len(errs) != 1 {
			t.Errorf("%s: %d lines of error:\n%s", tt.name, len(errs), out)
		}
	}
	s.write(string(good))
	if out, code := s.bot("serve", "-frobnicate"); code != 2 {
		t.Errorf("wrong flag: code %d, output\n%s", code, out)
	}
}

func TestOperatorsSeeWhatHappened(t *testing.T) {
	s := newService(t, "")
	s.start()
	id := s.say("room1", "alice", "@trill hello")
	s.await("hello")
	file, err := os.ReadFile(filepath.Join(s.dir, "data", "token"))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(file))
	get := func(path, token string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+s.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if code, body := get("/healthz", ""); code != 200 || body != "ok\n" {
		t.Errorf("healthz: %d %s", code, body)
	}
	if code, body := get("/readyz", ""); code != 200 || !strings.Contains(body, `"cloud":{"ok":true,"platform":"nextcloud-talk"`) {
		t.Errorf("readyz: %d %s", code, body)
	}
	for _, bad := range []string{"", "wrong", token + "x"} {
		if code, _ := get("/api/sessions", bad); code != 401 {
			t.Errorf("token %q: %d", bad, code)
		}
	}
	code, body := get("/api/sessions", token)
	var list struct {
		Sessions []struct{ ID, Title string }
	}
	if err := json.Unmarshal([]byte(body), &list); code != 200 || err != nil || len(list.Sessions) != 1 || list.Sessions[0].Title != "hello" {
		t.Fatalf("sessions: %d %s %v", code, body, err)
	}
	session := list.Sessions[0].ID
	if code, body := get("/api/sessions/"+session+"/events?after=1", token); code != 200 || !strings.Contains(body, `"kind":"assistant"`) || strings.Contains(body, `"kind":"user"`) {
		t.Errorf("events: %d %s", code, body)
	}
	if code, _ := get("/api/sessions/nope", token); code != 404 {
		t.Errorf("unknown session: %d", code)
	}
	_, metrics := get("/metrics", "")
	for _, want := range []string{
		`trill_messages_total{channel="cloud",result="received"} 1`, `trill_runs_total{reason="answered"} 1`, "trill_turns_total 1",
		`trill_deliveries_total{channel="cloud",kind="answer",state="sent"} 1`, "trill_inbox_open 0", "trill_webhook_seconds_count",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"config", "check"}, "is fine"},
		{[]string{"sessions", "list"}, "hello"},
		{[]string{"sessions", "list", "-json"}, session},
		{[]string{"sessions", "show", session}, "run_"},
		{[]string{"sessions", "show", session[len(session)-8:]}, "Alice (cloud:users/alice)"},
		{[]string{"sessions", "export", session}, `"kind":"end"`},
		{[]string{"outbox", "list"}, "sent"},
		{[]string{"trace", fmt.Sprint(id)}, "delivery"},
		{[]string{"trace", fmt.Sprint(id), "-json"}, "answered"},
		{[]string{"backup", filepath.Join(s.dir, "copy.db")}, "Wrote"},
		{[]string{"version"}, "trill"},
		{[]string{"doctor"}, "Everything is fine"},
	} {
		out, code := s.bot(tt.args...)
		if code != 0 || !strings.Contains(out, tt.want) {
			t.Errorf("bot %s: code %d, output\n%s", strings.Join(tt.args, " "), code, out)
		}
	}
	s.settled()
}

func TestDemoPlaysWithoutAnybody(t *testing.T) {
	var out bytes.Buffer
	code := run(t.Context(), helper, []string{"demo"}, strings.NewReader("@trill what did I say earlier?\n"), &out, &out)
	for _, want := range []string{"Alice   @Trill hello", "May I run `write_file`?", "Olga    /approve", "notes.md", "Goodbye"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not show %q", want)
		}
	}
	if code != 0 || t.Failed() {
		t.Errorf("code %d, output\n%s", code, &out)
	}
}

func TestReplyChainsAreSessionsOfTheirOwn(t *testing.T) {
	s := newService(t, "")
	s.channel(`sessions = "reply"`)
	s.model.Handle(func(r *openaitest.Request) openaitest.Reply {
		n := 0
		for _, m := range r.Messages {
			if m.Role == "user" {
				n++
			}
		}
		_, text, _ := strings.Cut(r.Last(), "\n\n")
		return openaitest.Text(fmt.Sprintf("%s is request %d", text, n), 1)
	})
	s.start()
	s.say("room1", "alice", "@trill one")
	first := s.await("one is request 1")
	s.say("room1", "bob", "@trill two")
	s.await("two is request 1")
	d, err := s.cloud.Post(t.Context(), "room1", "users/alice", "three", talktest.PostOptions{ReplyTo: first.ID})
	if err != nil || d.Status != http.StatusOK {
		t.Fatalf("reply: %d %v", d.Status, err)
	}
	s.await("three is request 2")
	s.settled()
}
