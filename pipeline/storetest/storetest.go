// Package storetest is what every [pipeline.Store] has to do, as tests that each
// of them runs.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"trill/adapters"
	"trill/engine/message"
	"trill/engine/session"
	"trill/pipeline"
)

// Store is what is tested: both contracts over the same rows.
type Store interface {
	pipeline.Store
	session.Store
}

// Stores is an open, empty store.
type Stores struct {
	Store
	// Reopen ends the store as its process would and opens it again as another
	// process. It may be called once.
	Reopen func(t *testing.T) Store
	// Raw closes the store and returns every byte that is kept of it; nil when
	// that cannot be had.
	Raw func(t *testing.T) []byte
}

// Run tests the stores that open makes; each call makes an empty one.
func Run(t *testing.T, open func(t *testing.T) Stores) {
	for _, c := range []struct {
		name string
		test func(s suite)
	}{
		{"a message comes back as it was", testAccept},
		{"a redelivered message is not stored again", testAcceptRepeat},
		{"a replayed signature is not stored again", testAcceptDigest},
		{"a message without an id is refused with all others of the call", testAcceptAtomic},
		{"many accept the same messages at once", testAcceptRace},
		{"an ignored message keeps no text", testIgnored},
		{"the text of an ignored message is nowhere on the disk", testErased},
		{"open messages are listed in order, by thread", testOpen},
		{"a settled message cannot be settled again", testSettleOnce},
		{"settling stores replies and audit in one step", testSettle},
		{"a run starts with its message in the transcript", testStartRun},
		{"a thread has one open run", testOneRunPerThread},
		{"a session has one open run, wherever it is continued", testOneRunPerSession},
		{"the next run of a thread continues its session", testNextRun},
		{"of two workers one starts the run", testStartRace},
		{"waiting messages of the same person are steered into the run", testSteer},
		{"steering a transcript that moved on is a conflict", testSteerConflict},
		{"a run that is to stop takes nothing more in", testSteerStopped},
		{"a run ends with its answer", testFinish},
		{"a run ends once", testFinishOnce},
		{"a stop that the run does not know of wins", testStopWins},
		{"stop and end at the same time: one of them is told", testStopRace},
		{"/new moves the thread and stops the run in one step", testNew},
		{"/new in a thread without a run only moves it", testNewIdle},
		{"a run is taken over after a crash", testTakeOver},
		{"an approval is asked once", testAskOnce},
		{"an approval is decided once", testDecideOnce},
		{"of many who decide one does", testDecideRace},
		{"an approval that ran out cannot be allowed", testDecideLate},
		{"a command that decides too late changes nothing", testSettleDecide},
		{"approvals are found by code and room", testApprovalLookup},
		{"open questions end with the run", testApprovalEnds},
		{"a delivery is stored once", testEnqueueOnce},
		{"deliveries go in order within their room", testOrder},
		{"acks and status messages keep nobody waiting", testUnordered},
		{"parts after a refused one still go", testRejected},
		{"a delivery moves only from the state it is in", testUpdate},
		{"a delivery that is split again keeps its place", testResplit},
		{"a delivery that a dead process was sending is ambiguous", testSendingAfterCrash},
		{"an operator sends a held delivery again", testRetry},
		{"rooms with open deliveries are listed", testOpenRooms},
		{"blocks are set, replaced and lifted", testBlocks},
		{"the audit log shows the newest first", testAudit},
		{"depth counts what is open", testDepth},
		{"a message is traced to what was posted", testTrace},
		{"a quoted message is found in its thread", testThreadOf},
		{"sessions are listed by activity", testSessions},
		{"tokens are summed up by session", testUsage},
		{"what is stored is there after a restart", testReopen},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(suite{T: t, Stores: open(t)}) })
	}
}

// suite is one test with its store, and short ways to say what happens.
type suite struct {
	*testing.T
	Stores
}

var (
	epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.UTC)
	lobby = adapters.ThreadKey{Channel: "cloud", Room: "lobby", Thread: "7"}
)

// at is n seconds after the beginning.
func at(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }

func inbound(key adapters.ThreadKey, id adapters.MessageID, person adapters.PersonID) adapters.InboundMessage {
	return adapters.InboundMessage{
		Channel: key.Channel, Platform: "nextcloud-talk", ID: id, Kind: adapters.KindText, Room: key.Room, Thread: key.Thread,
		Sender: adapters.Person{ID: person, Name: "Name of " + string(person)}, Text: "text of " + string(id),
	}
}

func (s suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s suite) want(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("got error %v, want %v", err, want)
	}
}

func diff[T any](s suite, what string, want, got T) {
	s.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		s.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// accept stores one received message and returns its row.
func (s suite) accept(key adapters.ThreadKey, id adapters.MessageID, person adapters.PersonID) pipeline.InboxRow {
	s.Helper()
	row := pipeline.InboxRow{Message: inbound(key, id, person), State: pipeline.Received, ReceivedAt: at(0)}
	ids, err := s.Accept(s.Context(), []pipeline.InboxRow{row})
	s.ok(err)
	if ids[0] == 0 {
		s.Fatalf("message %s was there already", id)
	}
	row.ID = ids[0]
	return row
}

func startOf(row pipeline.InboxRow, run session.RunID, newSession session.ID) pipeline.StartRun {
	m := row.Message
	return pipeline.StartRun{
		Row: row,
		Run: pipeline.Run{
			ID: run, Target: pipeline.Target{Key: m.Key(), ReplyTo: m.ID},
			Person: pipeline.PersonKey(m.Channel, m.Sender.ID), Role: pipeline.RoleMember,
		},
		NewSession: newSession,
		User:       session.User{Text: m.Text, Name: m.Sender.Name},
		At:         at(1),
	}
}

// start accepts a message and starts a run for it.
func (s suite) start(key adapters.ThreadKey, id adapters.MessageID, run session.RunID, newSession session.ID) pipeline.Run {
	s.Helper()
	r, err := s.StartRun(s.Context(), startOf(s.accept(key, id, "ann"), run, newSession))
	s.ok(err)
	return r
}

// finishOf ends a run whose transcript ends with event last.
func finishOf(r pipeline.Run, last int64, ds ...pipeline.Delivery) pipeline.FinishRun {
	return pipeline.FinishRun{
		Run: r.ID, Reason: session.EndAnswered,
		Events: []session.Event{
			{
				Session: r.Session, Seq: last + 1, Run: r.ID, Time: at(2), Kind: session.KindAssistant,
				Data: &session.Assistant{Text: "answer", Model: "m", Usage: message.Usage{Input: 10, Output: 2}},
			},
			{Session: r.Session, Seq: last + 2, Run: r.ID, Time: at(2), Kind: session.KindEnd, Data: &session.End{Reason: session.EndAnswered}},
		},
		Deliveries: ds,
		At:         at(2),
	}
}

func key64(name string) string { return fmt.Sprintf("%064x", name) }

func delivery(key adapters.ThreadKey, kind pipeline.DeliveryKind, name string, n int) pipeline.Delivery {
	return pipeline.Delivery{
		Kind: kind, Part: 1, Target: pipeline.Target{Key: key}, Text: name, Key: key64(name), State: pipeline.Pending,
		NextAt: at(n), CreatedAt: at(n),
	}
}

func (s suite) enqueue(ds ...pipeline.Delivery) {
	s.Helper()
	s.ok(s.Enqueue(s.Context(), ds))
}

// next is the text of the delivery to look at next, empty for none.
func (s suite) next(key adapters.ThreadKey) pipeline.Delivery {
	s.Helper()
	d, err := s.NextDelivery(s.Context(), key.Channel, key.Room)
	if errors.Is(err, pipeline.ErrNotFound) {
		return pipeline.Delivery{}
	}
	s.ok(err)
	return d
}

// send takes the next delivery through sending to a state.
func (s suite) send(d pipeline.Delivery, to pipeline.DeliveryState) {
	s.Helper()
	d.State = pipeline.Sending
	d.Attempts++
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Pending, d))
	d.State = to
	if to == pipeline.Sent {
		d.SentAt, d.RemoteID = at(50), adapters.MessageID("remote "+d.Text)
	}
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Sending, d))
}

// drain sends everything in the room and returns the texts in order.
func (s suite) drain(key adapters.ThreadKey) []string {
	s.Helper()
	var texts []string
	for d := s.next(key); d.ID != 0; d = s.next(key) {
		texts = append(texts, d.Text)
		s.send(d, pipeline.Sent)
	}
	return texts
}

func testAccept(s suite) {
	m := inbound(lobby, "m1", "ann")
	m.ReplyTo, m.Digest, m.RoomName, m.Direct, m.Mentioned = "reply", "digest", "The Lobby", true, true
	m.Sender.Bot, m.Sender.Self = true, true
	m.Text = "hi\x00 \u2028 <b> \xff 🙂"
	m.Text = strings.ToValidUTF8(m.Text, "?")
	m.Quote = &adapters.Quote{ID: "q", Sender: adapters.Person{ID: "bob", Name: "Bob", Bot: true}, Text: "before"}
	m.Attachments = []adapters.Attachment{{ID: "f", Name: "a.txt", MIME: "text/plain", Size: 12, Link: "https://x/f"}}
	m.SentAt = at(-5)
	want := pipeline.InboxRow{Message: m, State: pipeline.Received, ReceivedAt: at(0)}
	ids, err := s.Accept(s.Context(), []pipeline.InboxRow{want})
	s.ok(err)
	want.ID = ids[0]
	got, err := s.Open(s.Context(), lobby)
	s.ok(err)
	diff(s, "open rows", []pipeline.InboxRow{want}, got)
}

func testAcceptRepeat(s suite) {
	row := s.accept(lobby, "m1", "ann")
	other := row
	other.Message.Channel = "slack"
	ids, err := s.Accept(s.Context(), []pipeline.InboxRow{row, other, other})
	s.ok(err)
	if ids[0] != 0 || ids[1] == 0 || ids[2] != 0 {
		s.Errorf("ids = %v; want 0, a new one, 0", ids)
	}
	s.ok(s.Settle(s.Context(), pipeline.Settle{Row: row.ID, State: pipeline.Done, Reason: "x", At: at(1)}))
	ids, err = s.Accept(s.Context(), []pipeline.InboxRow{row})
	s.ok(err)
	if ids[0] != 0 {
		s.Error("a settled message was stored again")
	}
}

func testAcceptDigest(s suite) {
	one := pipeline.InboxRow{Message: inbound(lobby, "m1", "ann"), State: pipeline.Received, ReceivedAt: at(0)}
	one.Message.Digest = "d1"
	replay := one
	replay.Message.ID = "m2"
	elsewhere := replay
	elsewhere.Message.Channel = "slack"
	ids, err := s.Accept(s.Context(), []pipeline.InboxRow{one, replay, elsewhere})
	s.ok(err)
	if ids[0] == 0 || ids[1] != 0 || ids[2] == 0 {
		s.Errorf("ids = %v; want a new one, 0, a new one", ids)
	}
	s.accept(lobby, "m3", "ann") // messages without a digest are not each other's replay
	s.accept(lobby, "m4", "ann")
}

func testAcceptAtomic(s suite) {
	good := pipeline.InboxRow{Message: inbound(lobby, "m1", "ann"), State: pipeline.Received}
	bad := pipeline.InboxRow{Message: inbound(lobby, "", "ann"), State: pipeline.Received}
	if _, err := s.Accept(s.Context(), []pipeline.InboxRow{good, bad}); err == nil {
		s.Error("a message without an id was stored")
	}
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	diff(s, "open rows", nil, rows)
}

func testAcceptRace(s suite) {
	const clients, messages = 8, 40
	var mu sync.Mutex
	news := map[pipeline.InboxID]adapters.MessageID{}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for n := range messages {
				m := inbound(lobby, adapters.MessageID(strconv.Itoa(n)), "ann")
				ids, err := s.Accept(s.Context(), []pipeline.InboxRow{{Message: m, State: pipeline.Received}})
				if err != nil {
					s.Error(err)
					return
				}
				if ids[0] != 0 {
					mu.Lock()
					news[ids[0]] = m.ID
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	if len(rows) != messages || len(news) != messages {
		s.Errorf("%d rows, %d ids; want %d of each", len(rows), len(news), messages)
	}
	for _, r := range rows {
		if news[r.ID] != r.Message.ID {
			s.Errorf("row %d is message %s, its client was told %s", r.ID, r.Message.ID, news[r.ID])
		}
	}
}

// wordy is a message full of the word.
func wordy(key adapters.ThreadKey, id adapters.MessageID, word string) adapters.InboundMessage {
	m := inbound(key, id, "ann")
	m.Text, m.RoomName = "text "+word, "room "+word
	m.Quote = &adapters.Quote{ID: "q", Text: "quote " + word}
	m.Attachments = []adapters.Attachment{{Name: "file " + word}}
	return m
}

func testIgnored(s suite) {
	later := pipeline.InboxRow{Message: wordy(lobby, "later", "secret"), State: pipeline.Received, ReceivedAt: at(0)}
	atOnce := pipeline.InboxRow{Message: wordy(lobby, "at once", "secret"), State: pipeline.Ignored, Reason: "not mentioned", ReceivedAt: at(0)}
	ids, err := s.Accept(s.Context(), []pipeline.InboxRow{later, atOnce})
	s.ok(err)
	s.ok(s.Settle(s.Context(), pipeline.Settle{Row: ids[0], State: pipeline.Ignored, Reason: "not mentioned", At: at(1)}))
	for _, id := range []adapters.MessageID{"later", "at once"} {
		tr, err := s.Trace(s.Context(), id)
		s.ok(err)
		if len(tr) != 1 {
			s.Fatalf("%d rows of message %q", len(tr), id)
		}
		row := tr[0].Row
		if row.State != pipeline.Ignored || row.Reason != "not mentioned" || row.Message.Sender.ID != "ann" {
			s.Errorf("%q: state %q, reason %q, person %q", id, row.State, row.Reason, row.Message.Sender.ID)
		}
		if m := row.Message; m.Text != "" || m.RoomName != "" || m.Quote != nil || m.Attachments != nil {
			s.Errorf("%q kept text: %+v", id, m)
		}
	}
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	diff(s, "open rows", nil, rows)
}

func testErased(s suite) {
	if s.Raw == nil {
		s.Skip("this store cannot show its bytes")
	}
	const needle, kept = "NEEDLE-IN-HAYSTACK", "TO-BE-KEPT"
	var settle []pipeline.InboxID
	for n := range 200 {
		word := kept
		if n%2 == 0 {
			word = needle
		}
		m := wordy(lobby, adapters.MessageID("m"+strconv.Itoa(n)), word)
		m.Text = strings.Repeat(word+" ", 1+n*n/10) // from a few bytes to several pages
		ids, err := s.Accept(s.Context(), []pipeline.InboxRow{{Message: m, State: pipeline.Received}})
		s.ok(err)
		if word == needle {
			settle = append(settle, ids[0])
		}
		m.ID += "-ignored"
		m.Text = needle
		_, err = s.Accept(s.Context(), []pipeline.InboxRow{{Message: wordy(lobby, m.ID, needle), State: pipeline.Ignored}})
		s.ok(err)
	}
	for _, id := range settle {
		s.ok(s.Settle(s.Context(), pipeline.Settle{Row: id, State: pipeline.Ignored, Reason: "not mentioned", At: at(1)}))
	}
	raw := s.Raw(s.T)
	if !bytes.Contains(raw, []byte(kept)) {
		s.Error("the text of open messages is not there: the test looks in the wrong place")
	}
	if n := bytes.Count(raw, []byte(needle)); n > 0 {
		s.Errorf("text of ignored messages is still there %d times", n)
	}
}

func testOpen(s suite) {
	a, b := lobby, lobby
	b.Thread = "8"
	one, two, three, other := s.accept(a, "1", "ann"), s.accept(a, "2", "bob"), s.accept(a, "3", "ann"), s.accept(b, "4", "ann")
	s.ok(s.Wait(s.Context(), two.ID))
	s.ok(s.Settle(s.Context(), pipeline.Settle{Row: three.ID, State: pipeline.Dead, Reason: "poison", At: at(1)}))
	two.State = pipeline.Waiting
	for _, c := range []struct {
		key  adapters.ThreadKey
		want []pipeline.InboxRow
	}{{a, []pipeline.InboxRow{one, two}}, {b, []pipeline.InboxRow{other}}} {
		got, err := s.Open(s.Context(), c.key)
		s.ok(err)
		diff(s, "open rows", c.want, got)
	}
	keys, err := s.OpenThreads(s.Context())
	s.ok(err)
	diff(s, "open threads", []adapters.ThreadKey{a, b}, keys)
	s.want(s.Wait(s.Context(), three.ID), pipeline.ErrGone)
}

func testSettleOnce(s suite) {
	row := s.accept(lobby, "1", "ann")
	done := pipeline.Settle{Row: row.ID, State: pipeline.Done, Reason: "command", At: at(1)}
	s.ok(s.Settle(s.Context(), done))
	done.Deliveries = []pipeline.Delivery{delivery(lobby, pipeline.KindReply, "twice", 1)}
	s.want(s.Settle(s.Context(), done), pipeline.ErrGone)
	done.Row = 4711
	s.want(s.Settle(s.Context(), done), pipeline.ErrGone)
	if d := s.next(lobby); d.ID != 0 {
		s.Errorf("a settle that failed left delivery %q", d.Text)
	}
	open := s.accept(lobby, "2", "ann")
	if err := s.Settle(s.Context(), pipeline.Settle{Row: open.ID, State: pipeline.Waiting, At: at(1)}); err == nil {
		s.Error("settling left the row open")
	}
}

func testSettle(s suite) {
	row := s.accept(lobby, "1", "ann")
	s.ok(s.Settle(s.Context(), pipeline.Settle{
		Row: row.ID, State: pipeline.Done, Reason: "help", At: at(3),
		Deliveries: []pipeline.Delivery{delivery(lobby, pipeline.KindReply, "help text", 3)},
		Audit:      &pipeline.AuditEntry{Class: "command", Person: "cloud:ann", Detail: "/help"},
	}))
	d := s.next(lobby)
	if d.Text != "help text" || d.Inbox != row.ID || d.State != pipeline.Pending {
		s.Errorf("reply = %+v", d)
	}
	es, err := s.AuditLog(s.Context(), 10)
	s.ok(err)
	if len(es) != 1 || es[0].Class != "command" || !es[0].At.Equal(at(3)) {
		s.Errorf("audit log = %+v", es)
	}
}

func testStartRun(s suite) {
	row := s.accept(lobby, "1", "ann")
	want := startOf(row, "run_1", "sess_1")
	run, err := s.StartRun(s.Context(), want)
	s.ok(err)
	wantRun := want.Run
	wantRun.Session, wantRun.Inbox, wantRun.Attempts, wantRun.StartedAt = "sess_1", row.ID, 1, at(1)
	diff(s, "started run", wantRun, run)
	stored, err := s.Store.Run(s.Context(), "run_1")
	s.ok(err)
	diff(s, "stored run", wantRun, stored)

	evs, err := s.Events(s.Context(), "sess_1", 0, 0)
	s.ok(err)
	diff(s, "transcript", []session.Event{{
		Session: "sess_1", Seq: 1, Run: "run_1", Time: at(1), Kind: session.KindUser, Data: &want.User,
	}}, evs)
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	diff(s, "open rows", nil, rows)
	thread, err := s.Thread(s.Context(), lobby)
	s.ok(err)
	diff(s, "thread", pipeline.Thread{Key: lobby, Session: "sess_1"}, thread)
	keys, err := s.OpenThreads(s.Context())
	s.ok(err)
	diff(s, "open threads", []adapters.ThreadKey{lobby}, keys)
}

func testOneRunPerThread(s suite) {
	s.start(lobby, "1", "run_1", "sess_1")
	second := s.accept(lobby, "2", "bob")
	_, err := s.StartRun(s.Context(), startOf(second, "run_2", "sess_2"))
	s.want(err, pipeline.ErrGone)
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	diff(s, "open rows", []pipeline.InboxRow{second}, rows)
	if last, err := s.Last(s.Context(), "sess_1"); err != nil || last != 1 {
		s.Errorf("the transcript has %d events, %v; want 1", last, err)
	}
}

func testOneRunPerSession(s suite) {
	s.start(lobby, "1", "run_1", "sess_1")
	other := adapters.ThreadKey{Channel: "mail", Room: "INBOX", Thread: "t"}
	cont := s.accept(other, "2", "ann")
	s.ok(s.Settle(s.Context(), pipeline.Settle{
		Row: cont.ID, State: pipeline.Done, Reason: "continue", At: at(1), Thread: &pipeline.Thread{Key: other, Session: "sess_1"},
	}))
	_, err := s.StartRun(s.Context(), startOf(s.accept(other, "3", "ann"), "run_2", "sess_2"))
	s.want(err, pipeline.ErrGone)
}

func testNextRun(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	s.ok(s.FinishRun(s.Context(), finishOf(run, 1)))
	next := s.start(lobby, "2", "run_2", "sess_2")
	if next.Session != "sess_1" {
		s.Errorf("the second run got session %s", next.Session)
	}
	evs, err := s.Events(s.Context(), "sess_1", 3, 0)
	s.ok(err)
	if len(evs) != 1 || evs[0].Seq != 4 || evs[0].Run != "run_2" {
		s.Errorf("events of the second run = %+v", evs)
	}
}

func testStartRace(s suite) {
	row := s.accept(lobby, "1", "ann")
	const workers = 8
	won := make(chan session.RunID, workers)
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() {
			id := session.RunID("run_" + strconv.Itoa(n))
			switch _, err := s.StartRun(s.Context(), startOf(row, id, session.ID("sess_"+strconv.Itoa(n)))); {
			case err == nil:
				won <- id
			case !errors.Is(err, pipeline.ErrGone):
				s.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		s.Fatalf("%d workers started the run", len(won))
	}
	infos, err := s.Sessions(s.Context(), nil, 10, 0)
	s.ok(err)
	if len(infos) != 1 {
		s.Errorf("%d sessions were created", len(infos))
	}
}

func steerOf(r pipeline.Run, next int64) pipeline.Steer {
	return pipeline.Steer{
		Run: r, Next: next, At: at(5),
		Person: func(r pipeline.InboxRow) string { return pipeline.PersonKey(r.Message.Channel, r.Message.Sender.ID) },
		Event:  func(r pipeline.InboxRow) session.User { return session.User{Text: r.Message.Text, Steered: true} },
	}
}

func testSteer(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	evs, err := s.Steer(s.Context(), steerOf(run, 2))
	s.ok(err)
	diff(s, "events without anybody waiting", nil, evs)

	elsewhere := lobby
	elsewhere.Thread = "8"
	two, bob, three := s.accept(lobby, "2", "ann"), s.accept(lobby, "3", "bob"), s.accept(lobby, "4", "ann")
	unseen, far := s.accept(lobby, "5", "ann"), s.accept(elsewhere, "6", "ann")
	for _, r := range []pipeline.InboxRow{two, bob, three, far} {
		s.ok(s.Wait(s.Context(), r.ID))
	}
	evs, err = s.Steer(s.Context(), steerOf(run, 2))
	s.ok(err)
	want := []session.Event{
		{Session: "sess_1", Seq: 2, Run: "run_1", Time: at(5), Kind: session.KindUser, Data: &session.User{Text: "text of 2", Steered: true}},
		{Session: "sess_1", Seq: 3, Run: "run_1", Time: at(5), Kind: session.KindUser, Data: &session.User{Text: "text of 4", Steered: true}},
	}
	diff(s, "steered events", want, evs)
	stored, err := s.Events(s.Context(), "sess_1", 1, 0)
	s.ok(err)
	diff(s, "stored events", want, stored)

	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	bob.State = pipeline.Waiting
	diff(s, "rows that stay", []pipeline.InboxRow{bob, unseen}, rows)
	tr, err := s.Trace(s.Context(), "2")
	s.ok(err)
	if len(tr) != 1 || tr[0].Row.State != pipeline.Done || tr[0].Row.Run != "run_1" {
		s.Errorf("steered row = %+v", tr)
	}
}

func testSteerConflict(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	row := s.accept(lobby, "2", "ann")
	s.ok(s.Wait(s.Context(), row.ID))
	_, err := s.Steer(s.Context(), steerOf(run, 7))
	s.want(err, session.ErrConflict)
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	if len(rows) != 1 {
		s.Errorf("%d rows are open, want 1", len(rows))
	}
	s.ok(s.FinishRun(s.Context(), finishOf(run, 1)))
	_, err = s.Steer(s.Context(), steerOf(run, 4))
	s.want(err, pipeline.ErrGone)
}

// stop settles a /stop for the thread.
func (s suite) stop(key adapters.ThreadKey, id adapters.MessageID) {
	s.Helper()
	row := s.accept(key, id, "bob")
	s.ok(s.Settle(s.Context(), pipeline.Settle{Row: row.ID, State: pipeline.Done, Reason: "stop", At: at(3), Stop: "stopped by Bob", StopKey: key}))
}

func testSteerStopped(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	row := s.accept(lobby, "2", "ann")
	s.ok(s.Wait(s.Context(), row.ID))
	s.stop(lobby, "3")
	evs, err := s.Steer(s.Context(), steerOf(run, 2))
	s.ok(err)
	diff(s, "steered events", nil, evs)
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	if len(rows) != 1 {
		s.Errorf("%d rows are open, want 1", len(rows))
	}
}

func testFinish(s suite) {
	row := s.accept(lobby, "1", "ann")
	ack := delivery(lobby, pipeline.KindAck, "👀", 0)
	ack.Inbox = row.ID // before anybody knew of a run
	s.enqueue(ack)
	run, err := s.StartRun(s.Context(), startOf(row, "run_1", "sess_1"))
	s.ok(err)
	status, old := delivery(lobby, pipeline.KindStatus, "at work", 1), delivery(lobby, pipeline.KindStatus, "of another run", 1)
	status.Run, old.Run = "run_1", "run_0"
	s.enqueue(status, old)
	one, two := delivery(lobby, pipeline.KindAnswer, "part one", 2), delivery(lobby, pipeline.KindAnswer, "part two", 2)
	two.Part = 2
	s.ok(s.FinishRun(s.Context(), finishOf(run, 1, one, two)))

	got, err := s.Store.Run(s.Context(), "run_1")
	s.ok(err)
	if got.Reason != session.EndAnswered || !got.EndedAt.Equal(at(2)) {
		s.Errorf("ended run = %+v", got)
	}
	if last, err := s.Last(s.Context(), "sess_1"); err != nil || last != 3 {
		s.Errorf("the transcript has %d events, %v; want 3", last, err)
	}
	diff(s, "sent in the room", []string{"of another run", "part one", "part two"}, s.drain(lobby))
	dropped, err := s.Deliveries(s.Context(), pipeline.Dropped, 10)
	s.ok(err)
	if len(dropped) != 2 {
		s.Errorf("dropped = %+v; want the ack and the status message", dropped)
	}
	keys, err := s.OpenThreads(s.Context())
	s.ok(err)
	diff(s, "open threads", nil, keys)
	_, err = s.OpenRun(s.Context(), lobby)
	s.want(err, pipeline.ErrNotFound)
}

func testFinishOnce(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	s.want(s.FinishRun(s.Context(), finishOf(run, 4)), session.ErrConflict)
	s.ok(s.FinishRun(s.Context(), finishOf(run, 1)))
	s.want(s.FinishRun(s.Context(), finishOf(run, 3, delivery(lobby, pipeline.KindAnswer, "twice", 2))), pipeline.ErrGone)
	run.ID = "run_none"
	s.want(s.FinishRun(s.Context(), finishOf(run, 3)), pipeline.ErrGone)
	if last, err := s.Last(s.Context(), "sess_1"); err != nil || last != 3 {
		s.Errorf("the transcript has %d events, %v; want 3", last, err)
	}
	if d := s.next(lobby); d.ID != 0 {
		s.Errorf("delivery %q was stored", d.Text)
	}
}

func testStopWins(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	s.stop(lobby, "2")
	f := finishOf(run, 1, delivery(lobby, pipeline.KindAnswer, "answer", 2))
	s.want(s.FinishRun(s.Context(), f), pipeline.ErrStopRequested)
	got, err := s.Store.Run(s.Context(), "run_1")
	s.ok(err)
	if got.Stop != "stopped by Bob" || !got.EndedAt.IsZero() {
		s.Errorf("run = %+v", got)
	}
	if d := s.next(lobby); d.ID != 0 {
		s.Errorf("delivery %q was stored", d.Text)
	}
	f.Stopped, f.Reason = true, session.EndStopped
	s.ok(s.FinishRun(s.Context(), f))
}

func testStopRace(s suite) {
	for n := range 20 {
		key := lobby
		key.Thread = adapters.ThreadID(strconv.Itoa(n))
		id := strconv.Itoa(n)
		run := s.start(key, adapters.MessageID("ask "+id), session.RunID("run_"+id), session.ID("sess_"+id))
		row := s.accept(key, adapters.MessageID("stop "+id), "bob")
		var wg sync.WaitGroup
		var finished error
		wg.Go(func() { finished = s.FinishRun(s.Context(), finishOf(run, 1)) })
		wg.Go(func() {
			if err := s.Settle(s.Context(), pipeline.Settle{Row: row.ID, State: pipeline.Done, At: at(3), Stop: "stop", StopKey: key}); err != nil {
				s.Error(err)
			}
		})
		wg.Wait()
		got, err := s.Store.Run(s.Context(), run.ID)
		s.ok(err)
		switch {
		case finished == nil && got.Stop == "" && !got.EndedAt.IsZero(): // the end came first
		case errors.Is(finished, pipeline.ErrStopRequested) && got.Stop == "stop" && got.EndedAt.IsZero(): // the stop did
		default:
			s.Errorf("end: %v; run: %+v", finished, got)
		}
	}
}

func testNew(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	row := s.accept(lobby, "2", "ann")
	s.ok(s.Settle(s.Context(), pipeline.Settle{
		Row: row.ID, State: pipeline.Done, Reason: "new", At: at(3),
		Thread: &pipeline.Thread{Key: lobby, Session: "sess_2", Project: "website"}, Stop: "a new session was started", StopKey: lobby,
	}))
	s.want(s.FinishRun(s.Context(), finishOf(run, 1)), pipeline.ErrStopRequested)
	f := finishOf(run, 1)
	f.Stopped = true
	s.ok(s.FinishRun(s.Context(), f))

	next := s.start(lobby, "3", "run_2", "sess_3")
	if next.Session != "sess_2" || next.Project != "website" {
		s.Errorf("the next run has session %q, project %q", next.Session, next.Project)
	}
	evs, err := s.Events(s.Context(), "sess_2", 0, 0)
	s.ok(err)
	if len(evs) != 1 || evs[0].Seq != 1 {
		s.Errorf("transcript of the new session = %+v", evs)
	}
}

func testNewIdle(s suite) {
	_, err := s.Thread(s.Context(), lobby)
	s.want(err, pipeline.ErrNotFound)
	row := s.accept(lobby, "1", "ann")
	s.ok(s.Settle(s.Context(), pipeline.Settle{
		Row: row.ID, State: pipeline.Done, Reason: "switch-project", At: at(1),
		Thread: &pipeline.Thread{Key: lobby, Project: "website"}, Stop: "new", StopKey: lobby,
	}))
	run := s.start(lobby, "2", "run_1", "sess_1")
	if run.Session != "sess_1" || run.Project != "website" || run.Stop != "" {
		s.Errorf("run = %+v", run)
	}
	thread, err := s.Thread(s.Context(), lobby)
	s.ok(err)
	diff(s, "thread", pipeline.Thread{Key: lobby, Session: "sess_1", Project: "website"}, thread)
}

func testTakeOver(s suite) {
	want := s.start(lobby, "1", "run_1", "sess_1")
	s.stop(lobby, "2")
	again := suite{T: s.T, Stores: Stores{Store: s.Reopen(s.T)}}
	got, err := again.OpenRun(again.Context(), lobby)
	again.ok(err)
	want.Attempts, want.Stop = 2, "stopped by Bob"
	diff(again, "run taken over", want, got)
	got, err = again.OpenRun(again.Context(), lobby)
	again.ok(err)
	if got.Attempts != 3 {
		s.Errorf("attempts = %d, want 3", got.Attempts)
	}
}

func question(run session.RunID, call, code string) pipeline.Approval {
	return pipeline.Approval{
		Code: code, Run: run, CallID: call, Digest: "sha", Key: lobby, Tool: "shell", Shown: "rm -r build",
		Requester: "cloud:ann", State: pipeline.ApprovalOpen, CreatedAt: at(1), ExpiresAt: at(600),
	}
}

func (s suite) ask(run session.RunID, call, code string) pipeline.Approval {
	s.Helper()
	a, err := s.AskApproval(s.Context(), question(run, call, code), nil)
	s.ok(err)
	return a
}

func testAskOnce(s suite) {
	want := question("run_1", "c1", "K7Q")
	a, err := s.AskApproval(s.Context(), want, []pipeline.Delivery{delivery(lobby, pipeline.KindApproval, "may I?", 1)})
	s.ok(err)
	want.ID = a.ID
	diff(s, "approval", want, a)
	again := question("run_1", "c1", "OTHER")
	b, err := s.AskApproval(s.Context(), again, []pipeline.Delivery{delivery(lobby, pipeline.KindApproval, "may I again?", 1)})
	s.ok(err)
	diff(s, "approval asked again", want, b)
	diff(s, "prompts", []string{"may I?"}, s.drain(lobby))

	s.ok(s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalDenied, By: "cloud:bob", Note: "no"}, at(9)))
	c, err := s.AskApproval(s.Context(), again, nil)
	s.ok(err)
	if c.State != pipeline.ApprovalDenied || c.By != "cloud:bob" || c.Note != "no" || !c.DecidedAt.Equal(at(9)) {
		s.Errorf("asked after the decision: %+v", c)
	}
}

func testDecideOnce(s suite) {
	a := s.ask("run_1", "c1", "K7Q")
	yes := pipeline.Decide{ID: a.ID, State: pipeline.ApprovalAllowed, By: "cloud:bob"}
	s.ok(s.DecideApproval(s.Context(), yes, at(2)))
	s.want(s.DecideApproval(s.Context(), yes, at(3)), pipeline.ErrGone)
	s.want(s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalDenied}, at(3)), pipeline.ErrGone)
	s.want(s.DecideApproval(s.Context(), pipeline.Decide{ID: 4711, State: pipeline.ApprovalDenied}, at(3)), pipeline.ErrGone)
	if err := s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalOpen}, at(3)); err == nil {
		s.Error("an approval was opened again")
	}
}

func testDecideRace(s suite) {
	a := s.ask("run_1", "c1", "K7Q")
	const people = 8
	won := make(chan string, people)
	var wg sync.WaitGroup
	for n := range people {
		wg.Go(func() {
			by := "cloud:" + strconv.Itoa(n)
			switch err := s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalAllowed, By: by}, at(2)); {
			case err == nil:
				won <- by
			case !errors.Is(err, pipeline.ErrGone):
				s.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := s.Approval(s.Context(), lobby, "K7Q")
	s.ok(err)
	if len(won) != 1 || got.By != <-won {
		s.Errorf("%d people decided; stored: %+v", len(won), got)
	}
}

func testDecideLate(s suite) {
	a := s.ask("run_1", "c1", "K7Q")
	s.want(s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalAllowed}, at(600)), pipeline.ErrGone)
	s.ok(s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalExpired}, at(601)))
}

func testSettleDecide(s suite) {
	a := s.ask("run_1", "c1", "K7Q")
	approve := func(id adapters.MessageID) pipeline.Settle {
		return pipeline.Settle{
			Row: s.accept(lobby, id, "bob").ID, State: pipeline.Done, Reason: "approve", At: at(2),
			Decide:     &pipeline.Decide{ID: a.ID, State: pipeline.ApprovalAllowed, By: "cloud:bob"},
			Deliveries: []pipeline.Delivery{delivery(lobby, pipeline.KindReply, "reply to "+string(id), 2)},
		}
	}
	s.ok(s.Settle(s.Context(), approve("1")))
	s.want(s.Settle(s.Context(), approve("2")), pipeline.ErrGone)
	rows, err := s.Open(s.Context(), lobby)
	s.ok(err)
	if len(rows) != 1 || rows[0].Message.ID != "2" {
		s.Errorf("open rows = %+v", rows)
	}
	diff(s, "replies", []string{"reply to 1"}, s.drain(lobby))

	b := s.ask("run_1", "c2", "AAA")
	settled := approve("3")
	settled.Row, settled.Decide = 4711, &pipeline.Decide{ID: b.ID, State: pipeline.ApprovalAllowed}
	s.want(s.Settle(s.Context(), settled), pipeline.ErrGone)
	if got, err := s.Approval(s.Context(), lobby, "AAA"); err != nil || got.State != pipeline.ApprovalOpen {
		s.Errorf("a settle that failed left the approval %+v, %v", got, err)
	}
}

func testApprovalLookup(s suite) {
	first := s.ask("run_1", "c1", "K7Q")
	_, err := s.AskApproval(s.Context(), question("run_1", "c9", "K7Q"), nil)
	s.want(err, pipeline.ErrGone) // the code is taken
	s.ok(s.DecideApproval(s.Context(), pipeline.Decide{ID: first.ID, State: pipeline.ApprovalDenied}, at(2)))
	second := s.ask("run_1", "c2", "K7Q")
	third := s.ask("run_1", "c3", "ZZZ")
	got, err := s.Approval(s.Context(), lobby, "K7Q")
	s.ok(err)
	diff(s, "newest with the code", second, got)
	elsewhere := lobby
	elsewhere.Room = "attic"
	_, err = s.Approval(s.Context(), elsewhere, "K7Q")
	s.want(err, pipeline.ErrNotFound)
	open, err := s.OpenApprovals(s.Context(), lobby)
	s.ok(err)
	diff(s, "open ones", []pipeline.Approval{second, third}, open)
	open, err = s.OpenApprovals(s.Context(), elsewhere)
	s.ok(err)
	diff(s, "open ones elsewhere", nil, open)
}

func testApprovalEnds(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	a := s.ask("run_1", "c1", "K7Q")
	s.ok(s.FinishRun(s.Context(), finishOf(run, 1)))
	s.want(s.DecideApproval(s.Context(), pipeline.Decide{ID: a.ID, State: pipeline.ApprovalAllowed}, at(3)), pipeline.ErrGone)
	got, err := s.Approval(s.Context(), lobby, "K7Q")
	s.ok(err)
	if got.State != pipeline.ApprovalExpired {
		s.Errorf("approval = %+v", got)
	}
}

func testEnqueueOnce(s suite) {
	d := delivery(lobby, pipeline.KindReply, "once", 1)
	d.Target.ReplyTo, d.Run, d.Inbox, d.Part = "m1", "run_1", 3, 2
	s.enqueue(d, d)
	got := s.next(lobby)
	again := d
	again.Text = "other text, same key"
	s.enqueue(again)
	d.ID = got.ID
	diff(s, "delivery", d, got)
	diff(s, "sent", []string{"once"}, s.drain(lobby))
	s.enqueue(d)
	diff(s, "sent after a repeat", nil, s.drain(lobby))
	if err := s.Enqueue(s.Context(), []pipeline.Delivery{{Kind: pipeline.KindReply}}); err == nil {
		s.Error("a delivery without a key was stored")
	}
}

func testOrder(s suite) {
	attic := lobby
	attic.Room = "attic"
	other := lobby
	other.Thread = "another thread of the room"
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "1", 5), delivery(attic, pipeline.KindAnswer, "a", 1))
	s.enqueue(delivery(other, pipeline.KindReply, "2", 1), delivery(lobby, pipeline.KindApproval, "3", 0))
	head := s.next(lobby)
	head.NextAt, head.Attempts, head.Error = at(99), 1, "503"
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Pending, head))
	diff(s, "head of the queue that has to wait", head, s.next(lobby))
	diff(s, "sent in the attic", []string{"a"}, s.drain(attic))
	diff(s, "sent in the lobby", []string{"1", "2", "3"}, s.drain(lobby))
}

func testUnordered(s suite) {
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "answer", 10), delivery(lobby, pipeline.KindAnswer, "second", 0),
		delivery(lobby, pipeline.KindStatus, "status", 8), delivery(lobby, pipeline.KindAck, "ack", 4),
		delivery(lobby, pipeline.KindAck, "late ack", 20))
	diff(s, "sent", []string{"ack", "status", "answer", "second", "late ack"}, s.drain(lobby))
}

func testRejected(s suite) {
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "1", 0), delivery(lobby, pipeline.KindAnswer, "2", 0), delivery(lobby, pipeline.KindAnswer, "3", 0))
	s.send(s.next(lobby), pipeline.Rejected)
	s.send(s.next(lobby), pipeline.Held)
	diff(s, "sent", []string{"3"}, s.drain(lobby))
}

func testUpdate(s suite) {
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "1", 0))
	d := s.next(lobby)
	d.State, d.Attempts = pipeline.Sending, 1
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Pending, d))
	s.want(s.UpdateDelivery(s.Context(), pipeline.Pending, d), pipeline.ErrGone)
	d.State, d.NextAt, d.Error = pipeline.Ambiguous, at(7), "timeout"
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Sending, d))
	diff(s, "ambiguous delivery", d, s.next(lobby))
	d.State, d.Error, d.RemoteID, d.SentAt = pipeline.Sent, "", "r1", at(8)
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Ambiguous, d))
	got, err := s.Deliveries(s.Context(), pipeline.Sent, 10)
	s.ok(err)
	diff(s, "sent deliveries", []pipeline.Delivery{d}, got)
	d.ID = 4711
	s.want(s.UpdateDelivery(s.Context(), pipeline.Sent, d), pipeline.ErrGone)
}

func testResplit(s suite) {
	var ds []pipeline.Delivery
	for n, text := range []string{"A", "B", "C"} {
		d := delivery(lobby, pipeline.KindAnswer, text, 0)
		d.Run, d.Inbox, d.Part, d.Target.ReplyTo = "run_1", 1, n+1, "m1"
		ds = append(ds, d)
	}
	s.enqueue(ds...)
	other := delivery(lobby, pipeline.KindReply, "D", 0)
	s.enqueue(other)
	s.send(s.next(lobby), pipeline.Sent) // A

	b := s.next(lobby)
	b.State = pipeline.Sending
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Pending, b))
	s.ok(s.Resplit(s.Context(), b.ID, []string{"B1", "B2"}))
	s.want(s.Resplit(s.Context(), b.ID, []string{"B1", "B2"}), pipeline.ErrGone)
	s.want(s.Resplit(s.Context(), 4711, []string{"x"}), pipeline.ErrNotFound)

	b1 := s.next(lobby)
	if b1.Text != "B1" || b1.State != pipeline.Pending || b1.Run != "run_1" || b1.Inbox != 1 || b1.Target != b.Target || b1.Attempts != 0 {
		s.Errorf("first of the new parts = %+v", b1)
	}
	s.ok(s.Resplit(s.Context(), b1.ID, []string{"B1a", "B1b", "B1c"}))
	var got, keys []string
	var parts []int
	for d := s.next(lobby); d.ID != 0; d = s.next(lobby) {
		got, parts, keys = append(got, d.Text), append(parts, d.Part), append(keys, d.Key)
		if len(d.Key) != 64 || strings.Trim(d.Key, "0123456789abcdef") != "" {
			s.Errorf("key of %s = %q", d.Text, d.Key)
		}
		s.send(d, pipeline.Sent)
	}
	diff(s, "sent", []string{"B1a", "B1b", "B1c", "B2", "C", "D"}, got)
	diff(s, "parts", []int{2, 3, 4, 5, 6, 1}, parts)
	seen := map[string]bool{b.Key: true, b1.Key: true}
	for _, k := range keys {
		if seen[k] {
			s.Errorf("key %s is used twice", k)
		}
		seen[k] = true
	}
}

func testSendingAfterCrash(s suite) {
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "1", 0))
	d := s.next(lobby)
	d.State, d.Attempts = pipeline.Sending, 1
	s.ok(s.UpdateDelivery(s.Context(), pipeline.Pending, d))
	rooms, err := s.OpenRooms(s.Context())
	s.ok(err)
	if got := s.next(lobby); len(rooms) != 1 || got.State != pipeline.Sending {
		s.Errorf("this process is sending: rooms %v, state %q", rooms, got.State)
	}

	again := suite{T: s.T, Stores: Stores{Store: s.Reopen(s.T)}}
	rooms, err = again.OpenRooms(again.Context())
	again.ok(err)
	want := adapters.ThreadKey{Channel: lobby.Channel, Room: lobby.Room}
	diff(again, "open rooms", []adapters.ThreadKey{want}, rooms)
	d.State = pipeline.Ambiguous
	diff(again, "delivery", d, again.next(lobby))
}

func testRetry(s suite) {
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "1", 0), delivery(lobby, pipeline.KindAnswer, "2", 0))
	one := s.next(lobby)
	s.send(one, pipeline.Held)
	s.ok(s.SetBlock(s.Context(), pipeline.Block{Channel: lobby.Channel, Room: lobby.Room, Reason: "403", Since: at(1)}))
	s.ok(s.SetBlock(s.Context(), pipeline.Block{Channel: lobby.Channel, Room: "attic", Reason: "403", Since: at(1)}))
	d, err := s.RetryDelivery(s.Context(), one.ID, at(60))
	s.ok(err)
	if d.State != pipeline.Pending || !d.NextAt.Equal(at(60)) || d.Key != one.Key {
		s.Errorf("retried delivery = %+v", d)
	}
	blocks, err := s.Blocks(s.Context())
	s.ok(err)
	if len(blocks) != 1 || blocks[0].Room != "attic" {
		s.Errorf("blocks = %+v", blocks)
	}
	diff(s, "sent", []string{"1", "2"}, s.drain(lobby))
	_, err = s.RetryDelivery(s.Context(), one.ID, at(61))
	s.want(err, pipeline.ErrGone)
	_, err = s.RetryDelivery(s.Context(), 4711, at(61))
	s.want(err, pipeline.ErrNotFound)
}

func testOpenRooms(s suite) {
	attic, mail := lobby, adapters.ThreadKey{Channel: "mail", Room: "INBOX"}
	attic.Room = "attic"
	s.enqueue(delivery(lobby, pipeline.KindAnswer, "1", 0), delivery(lobby, pipeline.KindAnswer, "2", 0),
		delivery(attic, pipeline.KindAck, "3", 0), delivery(mail, pipeline.KindAnswer, "4", 0))
	s.drain(mail)
	rooms, err := s.OpenRooms(s.Context())
	s.ok(err)
	diff(s, "open rooms", []adapters.ThreadKey{{Channel: "cloud", Room: "attic"}, {Channel: "cloud", Room: "lobby"}}, rooms)
	ds, err := s.Deliveries(s.Context(), "", 3)
	s.ok(err)
	var texts []string
	for _, d := range ds {
		texts = append(texts, d.Text)
	}
	diff(s, "newest deliveries", []string{"4", "3", "2"}, texts)
}

func testBlocks(s suite) {
	room := pipeline.Block{Channel: "cloud", Room: "lobby", Reason: "403", Since: at(1), Until: at(60)}
	channel := pipeline.Block{Channel: "cloud", Reason: "401", Since: at(2)}
	s.ok(s.SetBlock(s.Context(), room))
	s.ok(s.SetBlock(s.Context(), channel))
	room.Reason, room.Until = "404", time.Time{}
	s.ok(s.SetBlock(s.Context(), room))
	got, err := s.Blocks(s.Context())
	s.ok(err)
	diff(s, "blocks", []pipeline.Block{channel, room}, got)
	s.ok(s.LiftBlock(s.Context(), "cloud", ""))
	s.ok(s.LiftBlock(s.Context(), "cloud", "no such block"))
	got, err = s.Blocks(s.Context())
	s.ok(err)
	diff(s, "blocks", []pipeline.Block{room}, got)
}

func testAudit(s suite) {
	s.ok(s.Audit(s.Context()))
	var want []pipeline.AuditEntry
	for n := range 5 {
		e := pipeline.AuditEntry{At: at(n), Class: "access_denied", Key: "cloud", Room: "lobby", Person: "cloud:eve", Detail: strconv.Itoa(n)}
		s.ok(s.Audit(s.Context(), e))
		want = append([]pipeline.AuditEntry{e}, want...)
	}
	got, err := s.AuditLog(s.Context(), 3)
	s.ok(err)
	for i := range got {
		if got[i].ID == 0 {
			s.Error("an entry has no id")
		}
		got[i].ID = 0
	}
	diff(s, "audit log", want[:3], got)
}

func testDepth(s suite) {
	d, err := s.Depth(s.Context())
	s.ok(err)
	diff(s, "depth of an empty store", pipeline.Depth{}, d)
	s.start(lobby, "1", "run_1", "sess_1")
	s.accept(lobby, "2", "ann")
	s.ok(s.Wait(s.Context(), s.accept(lobby, "3", "ann").ID))
	s.ask("run_1", "c1", "K7Q")
	for n := range 4 {
		s.enqueue(delivery(lobby, pipeline.KindAnswer, strconv.Itoa(n), 0))
	}
	s.send(s.next(lobby), pipeline.Sent)
	s.send(s.next(lobby), pipeline.Held)
	d, err = s.Depth(s.Context())
	s.ok(err)
	diff(s, "depth", pipeline.Depth{
		Inbox: 2, InboxOldest: at(0), Runs: 1, Approvals: 1,
		Outbox: map[pipeline.DeliveryState]int64{pipeline.Pending: 2, pipeline.Held: 1},
	}, d)
}

func testTrace(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	steered := s.accept(lobby, "2", "ann")
	s.ok(s.Wait(s.Context(), steered.ID))
	_, err := s.Steer(s.Context(), steerOf(run, 2))
	s.ok(err)
	s.ok(s.FinishRun(s.Context(), finishOf(run, 2, delivery(lobby, pipeline.KindAnswer, "answer", 2))))
	s.drain(lobby)
	command := s.accept(lobby, "3", "ann")
	s.ok(s.Settle(s.Context(), pipeline.Settle{
		Row: command.ID, State: pipeline.Done, Reason: "help", At: at(9),
		Deliveries: []pipeline.Delivery{delivery(lobby, pipeline.KindReply, "help", 9)},
	}))
	for _, c := range []struct {
		id     adapters.MessageID
		run    session.RunID
		posted string
	}{{"1", "run_1", "answer"}, {"2", "run_1", "answer"}, {"3", "", "help"}} {
		tr, err := s.Trace(s.Context(), c.id)
		s.ok(err)
		if len(tr) != 1 || len(tr[0].Deliveries) != 1 || tr[0].Deliveries[0].Text != c.posted {
			s.Errorf("trace of %s = %+v", c.id, tr)
			continue
		}
		if (tr[0].Run != nil) != (c.run != "") || tr[0].Run != nil && tr[0].Run.ID != c.run {
			s.Errorf("trace of %s: run %+v, want %q", c.id, tr[0].Run, c.run)
		}
	}
	tr, err := s.Trace(s.Context(), "never seen")
	s.ok(err)
	diff(s, "trace of an unknown message", nil, tr)
}

func testThreadOf(s suite) {
	chain := adapters.ThreadKey{Channel: lobby.Channel, Room: lobby.Room, Thread: "chain 1"}
	s.start(chain, "1", "run_1", "sess_1")
	s.ok(s.Enqueue(s.Context(), []pipeline.Delivery{delivery(chain, pipeline.KindAnswer, "the answer", 2)}))
	self := adapters.Person{ID: "bot", Bot: true, Self: true}
	for name, c := range map[string]struct {
		room adapters.RoomID
		q    adapters.Quote
		want adapters.ThreadID
		err  error
	}{
		"what came in":              {chain.Room, adapters.Quote{ID: "1"}, "chain 1", nil},
		"what was sent":             {chain.Room, adapters.Quote{ID: "9", Sender: self, Text: " the answer\n"}, "chain 1", nil},
		"the same, of somebody":     {chain.Room, adapters.Quote{ID: "9", Text: "the answer"}, "", pipeline.ErrNotFound},
		"what was never seen":       {chain.Room, adapters.Quote{ID: "9", Sender: self, Text: "no"}, "", pipeline.ErrNotFound},
		"the same id, another room": {"elsewhere", adapters.Quote{ID: "1"}, "", pipeline.ErrNotFound},
	} {
		got, err := s.ThreadOf(s.Context(), chain.Channel, c.room, c.q)
		if got != c.want || !errors.Is(err, c.err) {
			s.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.err)
		}
	}
}

func testSessions(s suite) {
	mail := adapters.ThreadKey{Channel: "mail", Room: "INBOX", Thread: "t"}
	a := startOf(s.accept(lobby, "1", "ann"), "run_1", "sess_1")
	a.User.Text = "  please \n look\tat " + strings.Repeat("é", 200)
	a.Run.Project = "website"
	run, err := s.StartRun(s.Context(), a)
	s.ok(err)
	b := startOf(s.accept(mail, "2", "ann"), "run_2", "sess_2")
	b.At = at(30)
	_, err = s.StartRun(s.Context(), b)
	s.ok(err)
	f := finishOf(run, 1)
	for i := range f.Events {
		f.Events[i].Time = at(60)
	}
	s.ok(s.FinishRun(s.Context(), f))

	all, err := s.Sessions(s.Context(), nil, 10, 0)
	s.ok(err)
	if len(all) != 2 || all[0].ID != "sess_1" || all[1].ID != "sess_2" {
		s.Fatalf("sessions = %+v", all)
	}
	one := all[0]
	if one.Key != lobby || one.Events != 3 || one.Running || !one.CreatedAt.Equal(at(1)) || !one.UpdatedAt.Equal(at(60)) || one.Project != "website" {
		s.Errorf("first session = %+v", one)
	}
	if n := len([]rune(one.Title)); n > 80 || !strings.HasPrefix(one.Title, "please look at ééé") {
		s.Errorf("title of %d characters: %q", n, one.Title)
	}
	if !all[1].Running {
		s.Error("the second session is running")
	}
	second, err := s.Sessions(s.Context(), nil, 1, 1)
	s.ok(err)
	diff(s, "second page", all[1:], second)
	inRoom, err := s.Sessions(s.Context(), &mail, 10, 0)
	s.ok(err)
	diff(s, "sessions of the mailbox", all[1:], inRoom)
	got, err := s.Session(s.Context(), "sess_1")
	s.ok(err)
	diff(s, "session", one, got)
	_, err = s.Session(s.Context(), "sess_none")
	s.want(err, session.ErrNotFound)
}

func testUsage(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	call := func(seq int64, u, wasted message.Usage) session.Event {
		return session.Event{
			Session: run.Session, Seq: seq, Run: run.ID, Time: at(2), Kind: session.KindAssistant,
			Data: &session.Assistant{Model: "m", Usage: u, Wasted: wasted},
		}
	}
	s.ok(s.Append(s.Context(), call(2, message.Usage{Input: 100, CachedInput: 40, Output: 10}, message.Usage{Input: 5, Output: 1})))
	s.ok(s.Append(s.Context(), call(3, message.Usage{Input: 200, Output: 20}, message.Usage{})))
	s.ok(s.Append(s.Context(), session.Event{Session: run.Session, Seq: 4, Run: run.ID, Time: at(3), Kind: session.KindUser, Data: &session.User{}}))
	s.want(s.Append(s.Context(), call(4, message.Usage{Input: 999}, message.Usage{})), session.ErrConflict)
	info, err := s.Session(s.Context(), run.Session)
	s.ok(err)
	diff(s, "usage", pipeline.Usage{Calls: 2, Input: 305, CachedInput: 40, Output: 31, LastInput: 200}, info.Usage)
}

func testReopen(s suite) {
	run := s.start(lobby, "1", "run_1", "sess_1")
	row := s.accept(lobby, "2", "bob")
	a := s.ask("run_1", "c1", "K7Q")
	s.enqueue(delivery(lobby, pipeline.KindReply, "reply", 1))
	want := s.next(lobby)
	again := suite{T: s.T, Stores: Stores{Store: s.Reopen(s.T)}}
	got, err := again.Store.Run(again.Context(), run.ID)
	again.ok(err)
	diff(again, "run", run, got)
	rows, err := again.Open(again.Context(), lobby)
	again.ok(err)
	diff(again, "open rows", []pipeline.InboxRow{row}, rows)
	open, err := again.OpenApprovals(again.Context(), lobby)
	again.ok(err)
	diff(again, "open approvals", []pipeline.Approval{a}, open)
	diff(again, "delivery", want, again.next(lobby))
	ids, err := again.Accept(again.Context(), []pipeline.InboxRow{row})
	again.ok(err)
	if ids[0] != 0 {
		s.Error("a message from before the restart was stored again")
	}
}
