package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trill/adapters/nextcloudtalk/talktest"
	"trill/engine"
	"trill/engine/message"
	"trill/engine/provider"
	"trill/engine/session"
	"trill/engine/tool"
	"trill/pipeline"
	"trill/storage"
	"trill/templates"
)

// benchClients is how many webhooks are under way at once.
const benchClients = 64

// hook makes webhooks of new messages.
type hook struct {
	cloud *talktest.Server
	n     atomic.Int64
}

func (h *hook) next(text string) ([]byte, http.Header) {
	body := fmt.Appendf(nil, `{"type":"Create","actor":{"type":"Person","id":"users\/alice","name":"Alice","talkParticipantType":"1"},"object":{"type":"Note","id":"%d","name":"message","content":"{\"message\":\"%s\",\"parameters\":[]}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"room1","name":"Room"}}`, h.n.Add(1), text)
	return body, h.cloud.Sign(body)
}

// hammer sends b.N webhooks over benchClients connections.
func (h *hook) hammer(b *testing.B, url, text string) {
	b.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: benchClients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range benchClients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				body, header := h.next(text)
				req, _ := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
				req.Header = header
				resp, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					b.Errorf("status %d", resp.StatusCode)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
}

// BenchmarkAck is the whole way of a signed webhook to its durable row and back
// (B03), and its bare twins: a net/http handler that checks the HMAC and makes
// one durable SQLite commit, alone or shared with whoever waits.
func BenchmarkAck(b *testing.B) {
	b.Run("trill", func(b *testing.B) {
		h := newBenchHouse(b, nil, false)
		(&hook{cloud: h.cloud}).hammer(b, h.url+"/api/webhooks/cloud", "@trill hello")
	})
	for _, twin := range []struct {
		name  string
		batch int
	}{{"bare commit each", 1}, {"bare group commit", 512}} {
		b.Run(twin.name, func(b *testing.B) {
			commit := bareCommitter(b, twin.batch)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
				if err != nil {
					http.Error(w, "too large", http.StatusRequestEntityTooLarge)
					return
				}
				mac := hmac.New(sha256.New, []byte(testSecret))
				io.WriteString(mac, r.Header.Get("X-Nextcloud-Talk-Random"))
				mac.Write(body)
				got, err := hex.DecodeString(r.Header.Get("X-Nextcloud-Talk-Signature"))
				if err != nil || !hmac.Equal(got, mac.Sum(nil)) {
					http.Error(w, "no", http.StatusUnauthorized)
					return
				}
				var m struct{ Object struct{ ID string } }
				if err := json.Unmarshal(body, &m); err != nil {
					http.Error(w, "malformed", http.StatusBadRequest)
					return
				}
				if err := commit(m.Object.ID, body); err != nil {
					http.Error(w, "not stored", http.StatusServiceUnavailable)
				}
			}))
			defer srv.Close()
			(&hook{cloud: talktest.New(talktest.Config{Secret: testSecret})}).hammer(b, srv.URL, "@trill hello")
		})
	}
}

// bareCommitter stores rows durably with nothing of ours: one connection, one
// table, up to batch rows a commit.
func bareCommitter(b *testing.B, batch int) func(id string, body []byte) error {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "bare.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`CREATE TABLE inbox (id INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	type row struct {
		id   string
		body []byte
		done chan error
	}
	rows := make(chan row, 1024)
	b.Cleanup(func() { close(rows) })
	go func() {
		for first := range rows {
			group := []row{first}
			for more := true; more && len(group) < batch; {
				select {
				case r := <-rows:
					group = append(group, r)
				default:
					more = false
				}
			}
			tx, err := db.Begin()
			for _, r := range group {
				if err == nil {
					_, err = tx.Exec(`INSERT INTO inbox (message_id, body) VALUES ($1, $2) ON CONFLICT DO NOTHING`, r.id, r.body)
				}
			}
			if err == nil {
				err = tx.Commit()
			}
			for _, r := range group {
				r.done <- err
			}
		}
	}()
	return func(id string, body []byte) error {
		done := make(chan error, 1)
		rows <- row{id, body, done}
		return <-done
	}
}

// instant is a model that needs no time: it calls n tools, then answers.
type instant struct{ tools int }

func (m instant) Stream(_ context.Context, req provider.Request, _ func(string)) (*provider.Response, error) {
	last := req.Messages[len(req.Messages)-1]
	if m.tools > 0 && last.Role == message.User {
		calls := make([]message.Call, m.tools)
		for i := range calls {
			calls[i] = message.Call{ID: fmt.Sprintf("c%d-%d", len(req.Messages), i), Tool: "look", Args: json.RawMessage(`{}`)}
		}
		return &provider.Response{Calls: calls, Model: "instant", Usage: message.Usage{Input: 100, Output: 10}}, nil
	}
	return &provider.Response{Text: "done", Model: "instant", Usage: message.Usage{Input: 100, Output: 10}}, nil
}

// look is a tool that reads nothing.
type look struct{}

func (look) Spec() tool.Spec {
	return tool.Spec{Name: "look", Description: "look", ReadOnly: true, Schema: json.RawMessage(`{"type":"object","properties":{}}`)}
}

func (look) Run(context.Context, tool.Env, json.RawMessage) (tool.Result, error) {
	return tool.Result{Text: "seen"}, nil
}

// benchHouse is the service in this process, with a model of the benchmark's.
type benchHouse struct {
	cloud *talktest.Server
	db    *storage.DB
	url   string
}

func newBenchHouse(b *testing.B, model provider.Provider, work bool) *benchHouse {
	b.Helper()
	dir := b.TempDir()
	h := &benchHouse{cloud: talktest.New(talktest.Config{Secret: testSecret})}
	cloudURL, err := h.cloud.Start()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.cloud.Close() })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	h.url = "http://" + ln.Addr().String()
	webhook := h.url + "/api/webhooks/cloud"
	h.cloud.SetBot(webhook)
	cfg := demoConfig(dir, cloudURL, webhook, testSecret)
	if h.db, err = storage.Open(context.Background(), storage.Config{Dir: dir}, discardLog()); err != nil {
		b.Fatal(err)
	}
	a := &app{cfg: cfg, log: discardLog(), db: h.db, metrics: newMetrics(h.db.Depth, discardLog())}
	if a.channels, err = openChannels(cfg, discardLog()); err != nil {
		b.Fatal(err)
	}
	if model == nil {
		model = instant{}
	}
	eng, err := engine.New(engine.Config{Provider: model, Store: h.db, Tools: []tool.Tool{look{}}})
	if err != nil {
		b.Fatal(err)
	}
	texts, err := templates.Chat()
	if err != nil {
		b.Fatal(err)
	}
	a.pipeline, err = pipeline.New(pipeline.Config{
		Store: h.db, Engine: eng, Channels: a.channels, Access: cfg.Access.Access(), Texts: texts,
		Workspace: func(session.ID) (string, error) { return dir, nil }, Name: "Trill", Trigger: "@trill", Observer: a.metrics,
		Ack: true, AckAfter: 300 * time.Millisecond, StatusAfter: 30 * time.Second, MaxRuns: 256,
	})
	if err != nil {
		b.Fatal(err)
	}
	if work {
		if err := a.pipeline.Start(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	srv := newServer(a.routes(), discardLog())
	go srv.Serve(ln)
	b.Cleanup(func() {
		srv.Close()
		if work {
			a.pipeline.Stop(context.Background())
		}
		h.db.Close()
	})
	return h
}

// BenchmarkTurns is whole turns over 64 rooms with an instant model: webhook in,
// inbox row, run, answer and delivery written, reply posted (B08; with three
// tools a turn B09).
func BenchmarkTurns(b *testing.B) {
	for _, tools := range []int{0, 3} {
		b.Run(fmt.Sprintf("tools=%d", tools), func(b *testing.B) {
			const rooms = 64
			h := newBenchHouse(b, instant{tools}, true)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			answered := make([]chan struct{}, rooms)
			for i := range answered {
				answered[i] = make(chan struct{}, 16)
			}
			go func() {
				for p := range h.cloud.Watch(ctx) {
					if n, err := strconv.Atoi(strings.TrimPrefix(p.Room, "room")); err == nil {
						answered[n] <- struct{}{}
					}
				}
			}()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for room := range rooms {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						d, err := h.cloud.Post(ctx, fmt.Sprint("room", room), demoAlice, "@trill hello", talktest.PostOptions{})
						if err != nil || d.Status != http.StatusOK {
							b.Errorf("post: %d %v", d.Status, err)
							return
						}
						<-answered[room]
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
		})
	}
}

// BenchmarkTurnInALongSession shows what a turn costs when the transcript is
// long: the events, and what of them the prompt needs.
func BenchmarkTurnInALongSession(b *testing.B) {
	for _, events := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("events=%d", events), func(b *testing.B) {
			dir := b.TempDir()
			db, err := storage.Open(context.Background(), storage.Config{Dir: dir}, discardLog())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			eng, err := engine.New(engine.Config{Provider: instant{}, Store: db})
			if err != nil {
				b.Fatal(err)
			}
			fillSession(b, db, "sess_long", events)
			b.ResetTimer()
			for i := range b.N {
				for _, err := range eng.Run(context.Background(), engine.Request{Session: "sess_long", Run: session.RunID(fmt.Sprint("run_b", i)), Text: "hello"}) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// fillSession gives a session a past of so many events, of which the last are in the
// prompt.
func fillSession(b *testing.B, db *storage.DB, id session.ID, events int) {
	b.Helper()
	var evs []session.Event
	add := func(data any) {
		evs = append(evs, session.Event{Session: id, Seq: int64(len(evs)) + 1, Run: "run_past", Time: time.Now(), Kind: session.KindOf(data), Data: data})
	}
	for len(evs) < events-1 {
		add(&session.User{Text: "a question of some length about this and that"})
		add(&session.Assistant{Text: "an answer of some length about this and that", Model: "instant"})
	}
	if len(evs) > 0 {
		add(&session.Trim{From: max(int64(len(evs))-20, 1)})
	}
	for len(evs) > 0 {
		n := min(len(evs), 5000)
		if err := db.Append(context.Background(), evs[:n]...); err != nil {
			b.Fatal(err)
		}
		evs = evs[n:]
	}
}

// BenchmarkStart is the time from the start of the process to the first ready
// answer, with a database of so many sessions (B06), and the memory it then has
// (B05).
func BenchmarkStart(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "bot")
	if out, err := buildBot(bin); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for _, sessions := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			dir := b.TempDir()
			addr := freeBenchAddr(b)
			conf := filepath.Join(dir, "trill.toml")
			text := fmt.Sprintf("[server]\nlisten = %q\n[models.default]\nprovider = \"offline\"\n[channels.cloud]\nplatform = \"nextcloud-talk\"\nurl = \"http://127.0.0.1:9\"\nsecret = %q\n", addr, testSecret)
			if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
			db, err := storage.Open(context.Background(), storage.Config{Dir: filepath.Join(dir, "data")}, discardLog())
			if err != nil {
				b.Fatal(err)
			}
			var wg sync.WaitGroup
			for w := range 64 {
				wg.Go(func() {
					for i := w; i < sessions; i += 64 {
						id := session.ID(fmt.Sprintf("sess_%08d", i))
						u := &session.User{Text: "hello"}
						if err := db.Append(context.Background(), session.Event{Session: id, Seq: 1, Run: "run_1", Time: time.Now(), Kind: session.KindUser, Data: u}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
			var rss int64
			b.ResetTimer()
			for range b.N {
				p := startBot(b, bin, conf, addr)
				b.StopTimer()
				rss = max(rss, residentSize(b, p.Pid))
				p.Kill()
				p.Wait()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/start")
			b.ReportMetric(float64(rss)/(1<<20), "MB")
		})
	}
}
