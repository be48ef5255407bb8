package storage_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"trill/adapters"
	"trill/engine/message"
	"trill/engine/session"
	"trill/pipeline"
	"trill/storage"
)

// journey takes one message to its answer, with everything there is on the way.
func journey(t *testing.T, db *storage.DB) {
	t.Helper()
	ctx, at := t.Context(), time.UnixMicro(1_700_000_000_000_000).UTC()
	r := row("m1")
	r.ReceivedAt, r.Message.Thread, r.Message.Digest = at, "7", "digest"
	r.Message.Quote = &adapters.Quote{ID: "m0", Text: "earlier"}
	r.Message.Attachments = []adapters.Attachment{{Name: "a.txt"}}
	ignored := row("m2")
	ignored.State, ignored.Reason = pipeline.Ignored, "not mentioned"
	ids, err := db.Accept(ctx, []pipeline.InboxRow{r, ignored})
	must(t, err)
	r.ID = ids[0]
	target := pipeline.Target{Key: r.Message.Key(), ReplyTo: "m1"}
	must(t, db.Enqueue(ctx, []pipeline.Delivery{{Kind: pipeline.KindAck, Inbox: r.ID, Target: target, Text: "👀", Key: "k0"}}))
	run, err := db.StartRun(ctx, pipeline.StartRun{
		Row: r, Run: pipeline.Run{ID: "run_1", Target: target, Person: "cloud:ann", Role: pipeline.RoleMember, Project: "website"},
		NewSession: "sess_1", User: session.User{Text: "please"}, At: at,
	})
	must(t, err)
	event := func(seq int64, kind session.Kind, data any) session.Event {
		return session.Event{Session: run.Session, Seq: seq, Run: run.ID, Time: at.Add(time.Duration(seq) * time.Second), Kind: kind, Data: data}
	}
	must(t, db.Append(ctx,
		event(2, session.KindAssistant, &session.Assistant{
			Model: "m", Usage: message.Usage{Input: 100, Output: 7}, Wasted: message.Usage{Input: 5},
			Calls: []message.Call{
				{ID: "c1", Tool: "shell", Args: json.RawMessage(`{"command": "ls"}`)},
				{ID: "c2", Tool: "shell", Args: json.RawMessage(`{"cut`)},
			},
		}),
		event(3, session.KindToolStart, &session.ToolStart{CallID: "c1", Tool: "shell"}),
		event(4, session.KindToolResult, &session.ToolResult{CallID: "c1", Tool: "shell", Text: "a.txt"}),
		event(5, session.KindToolResult, &session.ToolResult{CallID: "c2", Tool: "shell", Text: "no JSON", Failed: true}),
	))
	_, err = db.AskApproval(ctx, pipeline.Approval{
		Code: "K7Q", Run: run.ID, CallID: "c1", Key: target.Key, Tool: "shell", Shown: "ls", Requester: "cloud:ann",
		CreatedAt: at, ExpiresAt: at.Add(time.Hour),
	}, nil)
	must(t, err)
	must(t, db.FinishRun(ctx, pipeline.FinishRun{
		Run: run.ID, Reason: session.EndAnswered, At: at.Add(time.Minute),
		Events: []session.Event{
			event(6, session.KindAssistant, &session.Assistant{Model: "m", Text: "done", Usage: message.Usage{Input: 120, Output: 3}}),
			event(7, session.KindEnd, &session.End{Reason: session.EndAnswered}),
		},
		Deliveries: []pipeline.Delivery{
			{Kind: pipeline.KindAnswer, Part: 1, Target: target, Text: "one", Key: "k1"},
			{Kind: pipeline.KindAnswer, Part: 2, Target: target, Text: "two", Key: "k2"},
		},
	}))
	for n := range 2 {
		d, err := db.NextDelivery(ctx, "cloud", "lobby")
		must(t, err)
		d.State, d.Attempts = pipeline.Sending, 1
		must(t, db.UpdateDelivery(ctx, pipeline.Pending, d))
		d.State, d.RemoteID, d.SentAt = pipeline.Sent, adapters.MessageID("r"+strconv.Itoa(n+1)), at.Add(time.Duration(n+1)*time.Hour)
		must(t, db.UpdateDelivery(ctx, pipeline.Sending, d))
	}
	must(t, db.SetBlock(ctx, pipeline.Block{Channel: "cloud", Room: "attic", Reason: "403", Since: at}))
	must(t, db.Audit(ctx, pipeline.AuditEntry{At: at, Class: "access_denied", Person: "cloud:eve"}))
}

func TestInvariants(t *testing.T) {
	for _, c := range []struct{ name, damage, want string }{
		{"nothing is wrong", ``, ``},
		{"two open runs", `DROP INDEX runs_open_session; DROP INDEX runs_open_thread;
			INSERT INTO runs SELECT 'run_2', session, inbox, channel, room, thread, reply_to, person, role, project, stop, attempts,
				started_at, 0, '', owner, epoch, lease_until FROM runs;
			UPDATE runs SET ended_at = 0, reason = ''`, `session sess_1 has 2 open runs`},
		{"a gap in the transcript", `DELETE FROM events WHERE seq = 4`, `session sess_1 says it has 7 events and has 6, up to 7`},
		{"done without a run", `UPDATE inbox SET run = 'run_9' WHERE message_id = 'm1'; DELETE FROM outbox; DELETE FROM runs`,
			`message m1 of cloud is done without a run, a reply or a reason`},
		{"ignored without a reason", `UPDATE inbox SET reason = ''`, `message m2 of cloud is ignored without a reason`},
		{"ignored with text", `UPDATE inbox SET content = '{}'`, `message m2 of cloud is ignored and still has its text`},
		{"a run whose message is open", `UPDATE inbox SET state = 'received'`, `run run_1 was started by message 1, which is not done`},
		{"a run without an end", `UPDATE events SET kind = 'retry' WHERE kind = 'end'`, `run run_1 is answered and its transcript has no end`},
		{"an answer that is not there", `DELETE FROM outbox WHERE kind = 'answer'`, `run run_1 is answered and nothing was to be sent`},
		{"parts out of order", `UPDATE outbox SET sent_at = sent_at * 2 WHERE part = 1`, `part 2 of run run_1 was sent before part 1`},
		{"a part left behind", `UPDATE outbox SET state = 'pending' WHERE part = 1`, `part 2 of run run_1 was sent before part 1`},
		{"sent at no time", `UPDATE outbox SET sent_at = 0 WHERE part = 1`, `delivery 2 is sent and does not say when`},
		{"a question of a run that is over", `UPDATE approvals SET state = 'open'`, `approval 1 is open and its run run_1 is over`},
		{"tokens too many", `UPDATE sessions SET input = input + 1`,
			`session sess_1 was billed 226+10 tokens in 2 calls; the calls say 225+10 in 2`},
		{"tokens that no event has", `UPDATE sessions SET input = 0; UPDATE usage SET input = 0`, `session sess_1 was billed`},
		{"a call started twice", `UPDATE events SET kind = 'tool_start' WHERE seq = 4`, `event 4 of sess_1 starts call c1 again`},
		{"the result of no call", `UPDATE events SET data = '{"call_id":"c9"}' WHERE seq = 4`,
			`event 4 of sess_1 is the result of call c9, which nobody made`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			db := open(t, storage.Config{Dir: dir})
			journey(t, db)
			_, err := raw(t, dir).Exec("SELECT 1;" + c.damage)
			must(t, err)
			got, err := db.Invariants(t.Context())
			must(t, err)
			if c.want == "" && len(got) != 0 {
				t.Errorf("found %q", got)
			}
			if c.want != "" && !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, c.want) }) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

func TestStale(t *testing.T) {
	db := open(t, storage.Config{Dir: t.TempDir()})
	at := time.UnixMicro(1_700_000_000_000_000)
	r := row("m1")
	r.ReceivedAt = at
	ids, err := db.Accept(t.Context(), []pipeline.InboxRow{r})
	must(t, err)
	r.ID = ids[0]
	_, err = db.StartRun(t.Context(), pipeline.StartRun{Row: r, Run: pipeline.Run{ID: "run_1", Target: pipeline.Target{Key: r.Message.Key()}}, NewSession: "sess_1", At: at})
	must(t, err)
	_, err = db.AskApproval(t.Context(), pipeline.Approval{Code: "K7Q", Run: "run_1", Key: r.Message.Key(), ExpiresAt: at.Add(time.Minute)}, nil)
	must(t, err)
	must(t, db.Enqueue(t.Context(), []pipeline.Delivery{{Kind: pipeline.KindReply, Target: pipeline.Target{Key: r.Message.Key()}, Key: "k", NextAt: at}}))
	r.Message.ID = "m2"
	_, err = db.Accept(t.Context(), []pipeline.InboxRow{r})
	must(t, err)

	got, err := db.Stale(t.Context(), at)
	if err != nil || len(got) != 0 {
		t.Errorf("found %q, %v; want nothing", got, err)
	}
	got, err = db.Stale(t.Context(), at.Add(time.Hour))
	must(t, err)
	want := []string{
		"message m2 of cloud is received", "run run_1 is not over", "approval 1 of run run_1 is open", "delivery 1 to cloud lobby is pending",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestUsageByModel(t *testing.T) {
	db := open(t, storage.Config{Dir: t.TempDir()})
	journey(t, db)
	got, err := db.UsageSince(t.Context(), time.Time{})
	must(t, err)
	want := storage.ModelUsage{Model: "m", Usage: pipeline.Usage{Calls: 2, Input: 225, Output: 10}}
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := db.UsageSince(t.Context(), time.Now()); err != nil || len(got) != 0 {
		t.Errorf("since now: %+v, %v", got, err)
	}
}

func TestBackupUnderLoad(t *testing.T) { // F20
	db := open(t, storage.Config{Dir: t.TempDir()})
	journey(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	under := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := db.Accept(context.Background(), []pipeline.InboxRow{row(strconv.Itoa(c) + "-" + strconv.Itoa(n))}); err != nil {
					t.Error(err)
					return
				}
				once.Do(func() { close(under) })
			}
		})
	}
	<-under
	dir := t.TempDir()
	path := filepath.Join(dir, "trill.db")
	must(t, db.Backup(t.Context(), path))
	cancel()
	wg.Wait()
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := db.Backup(t.Context(), path); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a second backup to the same file: %v", err)
	}
	if err := db.Backup(t.Context(), filepath.Join(dir, "no", "folder")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a backup to nowhere: %v", err)
	}
	copied := open(t, storage.Config{Dir: dir})
	must(t, copied.Integrity(t.Context()))
	faults, err := copied.Invariants(t.Context())
	if err != nil || len(faults) != 0 {
		t.Errorf("invariants: %q, %v", faults, err)
	}
	sent, err := copied.Deliveries(t.Context(), pipeline.Sent, 10)
	if err != nil || len(sent) != 2 {
		t.Errorf("the copy has %d sent deliveries, %v; want 2", len(sent), err)
	}
}

// scans are the queries that may read a table from one end: lists that are cut
// short, tables that stay small, and what only a person at a terminal asks.
var scans = regexp.MustCompile(`FROM blocks |FROM inbox WHERE message_id LIKE| AS newest |FROM (audit|outbox)( WHERE state = 'sent')? ORDER BY id DESC LIMIT`)

// noTableIsRead checks that queries find their rows by an index, so that a call
// takes as long with a million rows as with ten.
func noTableIsRead(t *testing.T, dir string, queries []string) {
	pool := raw(t, dir)
	planned := 0
	for _, q := range queries {
		flat := strings.Join(strings.Fields(q), " ")
		if !regexp.MustCompile(`^(SELECT|UPDATE|INSERT|DELETE) `).MatchString(flat) {
			continue
		}
		planned++
		args := make([]any, 0, 20)
		for n := 1; strings.Contains(flat, "$"+strconv.Itoa(n)); n++ {
			args = append(args, "")
		}
		rows, err := pool.Query("EXPLAIN QUERY PLAN "+q, args...)
		must(t, err)
		for rows.Next() {
			var id, parent, unused int
			var detail string
			must(t, rows.Scan(&id, &parent, &unused, &detail))
			whole := strings.HasPrefix(detail, "SCAN ") && !strings.HasPrefix(detail, "SCAN CONSTANT ROW") &&
				!strings.Contains(detail, "INDEX ") && !strings.HasPrefix(detail, "SCAN (")
			if whole && !scans.MatchString(flat) {
				t.Errorf("%s\n\t%s", flat, detail)
			}
		}
		must(t, errors.Join(rows.Err(), rows.Close()))
	}
	if planned < 40 {
		t.Errorf("only %d queries were looked at", planned)
	}
}
