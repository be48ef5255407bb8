package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"text/template"
	"time"

	"trill/adapters"
	"trill/engine"
	"trill/engine/session"
)

// Engine is the part of *engine.Engine that the pipeline needs.
type Engine interface {
	Run(ctx context.Context, req engine.Request) iter.Seq2[engine.Event, error]
	GiveUp(ctx context.Context, req engine.Request, cause error, text string) error
}

// Observer is told what happens, for metrics. Its methods may be called from
// several goroutines and must be quick.
type Observer interface {
	// Accepted: a message was stored; state is Received or Ignored, or empty for
	// a repeat.
	Accepted(ch adapters.Channel, state InboxState)
	// RunEvent: an event of a run was stored.
	RunEvent(ev session.Event)
	// RunEnded: a run is over.
	RunEnded(reason session.EndReason, took time.Duration)
	// Delivered: a delivery was tried; state is where it stands now.
	Delivered(ch adapters.Channel, kind DeliveryKind, state DeliveryState)
}

// Channel is a configured channel.
type Channel struct {
	Adapter adapters.ChannelAdapter
	// HoldAmbiguous keeps a message whose posting nobody saw for an operator,
	// instead of posting it again.
	HoldAmbiguous bool
	// ByReply makes each chain of replies a thread of its own, where the
	// platform has no threads; otherwise the whole room is one.
	ByReply bool
}

// Project is a folder that sessions may work on.
type Project struct {
	Path        string
	Description string
}

// Config is what a [Pipeline] is made of. Store, Engine, Workspace, Trigger and
// Texts are required.
type Config struct {
	Store    Store
	Engine   Engine
	Channels map[adapters.Channel]Channel
	Access   Access
	Limits   Limits
	Projects map[string]Project
	// Workspace returns the folder of a session that works on no project, made
	// if need be.
	Workspace func(session.ID) (string, error)
	// Texts are the templates of what the bot says itself.
	Texts *template.Template

	Name          string // what the bot calls itself
	Trigger       string // what must be said in a room
	FollowThreads bool   // in threads of a session nothing has to be said

	MaxRuns         int           // at the same time; 0 means 64
	Ack             bool          // react to a message that takes longer than AckAfter
	AckAfter        time.Duration //
	StatusAfter     time.Duration // say that a run is at work; 0 never
	ApprovalTimeout time.Duration // 0 means 10 min
	Grace           time.Duration // how long runs may go on at shutdown
	Backoff         Backoff

	// Redact takes secrets out of text that leaves; nil keeps text as it is.
	Redact   func(string) string
	Observer Observer
	Log      *slog.Logger
	Now      func() time.Time
}

// Backoff bounds the waits between tries to send: full jitter from Base, doubled
// each time, up to Cap.
type Backoff struct {
	Base, Cap time.Duration // 0 means 1 s and 5 min
	// Settle is how long a request whose outcome nobody saw may still be at
	// work, before its outcome is looked for; 0 means 1 s.
	Settle time.Duration
}

// Pipeline moves messages from inbox to answer. Make one with [New], start it
// with Run, and hand it to adapters as their Inbox.
type Pipeline struct {
	conf     Config
	limits   *limiter
	commands []command
	out      *dispatcher
	slots    chan struct{} // one for each run that works

	wg        sync.WaitGroup
	mu        sync.Mutex // guards what follows
	started   bool
	ctx       context.Context // of the workers; set when started
	workers   map[adapters.ThreadKey]*worker
	decisions map[int64]chan struct{} // closed when the approval is decided
}

var _ adapters.Inbox = (*Pipeline)(nil)

// New returns a pipeline. It starts nothing.
func New(conf Config) (*Pipeline, error) {
	var errs []error
	need := func(ok bool, field string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: is required", field))
		}
	}
	need(conf.Store != nil, "Store")
	need(conf.Engine != nil, "Engine")
	need(conf.Workspace != nil, "Workspace")
	need(conf.Texts != nil, "Texts")
	need(conf.Trigger != "", "Trigger")
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("pipeline config: %w", err)
	}
	conf.MaxRuns = cmp.Or(conf.MaxRuns, 64)
	conf.ApprovalTimeout = cmp.Or(conf.ApprovalTimeout, 10*time.Minute)
	conf.Backoff.Base = cmp.Or(conf.Backoff.Base, time.Second)
	conf.Backoff.Cap = cmp.Or(conf.Backoff.Cap, 5*time.Minute)
	conf.Backoff.Settle = cmp.Or(conf.Backoff.Settle, time.Second)
	conf.Access.Default = cmp.Or(conf.Access.Default, RoleNone)
	if conf.Redact == nil {
		conf.Redact = func(s string) string { return s }
	}
	if conf.Log == nil {
		conf.Log = slog.New(slog.DiscardHandler)
	}
	if conf.Now == nil {
		conf.Now = time.Now
	}
	if conf.Observer == nil {
		conf.Observer = nobody{}
	}
	p := &Pipeline{
		conf:      conf,
		limits:    newLimiter(conf.Limits),
		slots:     make(chan struct{}, conf.MaxRuns),
		workers:   map[adapters.ThreadKey]*worker{},
		decisions: map[int64]chan struct{}{},
	}
	p.commands = commands()
	p.out = newDispatcher(conf)
	return p, nil
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Accepted(adapters.Channel, InboxState)                   {}
func (nobody) RunEvent(session.Event)                                  {}
func (nobody) RunEnded(session.EndReason, time.Duration)               {}
func (nobody) Delivered(adapters.Channel, DeliveryKind, DeliveryState) {}

// errShutdown is why runs are interrupted when the process ends; they are taken
// up again by the next.
var errShutdown = errors.New("shutting down")

// Start takes up what an earlier process left and begins to work. Work goes on
// until Stop.
func (p *Pipeline) Start(ctx context.Context) error {
	keys, err := p.conf.Store.OpenThreads(ctx)
	if err != nil {
		return fmt.Errorf("take up open threads: %w", err)
	}
	if err := p.out.start(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	p.started, p.ctx = true, context.WithoutCancel(ctx)
	for key := range p.workers { // of messages that came in before
		keys = append(keys, key)
	}
	p.mu.Unlock()
	for _, key := range keys {
		p.wake(key, nil)
	}
	return nil
}

// Stop ends the work: nothing new is begun, runs may go on for the grace period
// and are then interrupted, to be taken up by the next process; what is ready is
// sent as long as ctx allows. Messages are accepted until the end.
func (p *Pipeline) Stop(ctx context.Context) {
	p.mu.Lock()
	p.started = false
	workers := make([]*worker, 0, len(p.workers))
	for _, w := range p.workers {
		workers = append(workers, w)
	}
	p.mu.Unlock()
	for _, w := range workers {
		w.signal()
	}
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	grace := time.NewTimer(p.conf.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-ctx.Done():
	case <-grace.C:
	}
	for _, w := range workers {
		w.interrupt(errShutdown)
	}
	<-done
	p.out.stop(ctx)
}

// Accept implements [adapters.Inbox]. What is not for the bot, or from somebody
// who is not heard, is stored without a word of its text.
func (p *Pipeline) Accept(ctx context.Context, ms ...adapters.InboundMessage) error {
	if len(ms) == 0 {
		return nil
	}
	rows := make([]InboxRow, len(ms))
	var audits []AuditEntry
	for i, m := range ms {
		row := InboxRow{State: Received, ReceivedAt: p.conf.Now().UTC()}
		if err := p.chain(ctx, &m); err != nil {
			return err
		}
		row.Reason = p.refusal(ctx, &m)
		if row.Reason != "" {
			row.State = Ignored
			m = bare(m)
		}
		if row.Reason == reasonAccess {
			audits = append(audits, p.denied(&m))
		}
		row.Message = m
		rows[i] = row
	}
	ids, err := p.conf.Store.Accept(ctx, rows)
	if err != nil {
		// It may have been stored all the same, and the platform may not try
		// again: look when that is possible.
		for i := range rows {
			p.wake(rows[i].Message.Key(), nil)
		}
		return fmt.Errorf("store message: %w", err)
	}
	for i, id := range ids {
		m := &rows[i].Message
		if id == 0 {
			p.conf.Observer.Accepted(m.Channel, "")
			if rows[i].State == Received {
				p.wake(m.Key(), nil) // the first time may have been cut off
			}
			continue
		}
		p.conf.Observer.Accepted(m.Channel, rows[i].State)
		p.out.heard(ctx, m)
		if rows[i].State == Ignored {
			p.conf.Log.DebugContext(ctx, "message ignored", "channel", m.Channel, "room", m.Room, "message", m.ID, "reason", rows[i].Reason)
			continue
		}
		rows[i].ID = id
		p.wake(m.Key(), &rows[i])
	}
	if len(audits) > 0 {
		if err := p.conf.Store.Audit(ctx, audits...); err != nil {
			p.conf.Log.ErrorContext(ctx, "audit entry lost", "err", err)
		}
	}
	return nil
}

// refusal returns why a message starts nothing, or "" and leaves its text as the
// bot reads it. It depends on the message, the configuration, and on whether the
// bot is busy in the thread; not on time.
func (p *Pipeline) refusal(ctx context.Context, m *adapters.InboundMessage) string {
	switch {
	case m.Kind != adapters.KindText:
		return reasonKind
	case m.Sender.Self, m.Sender.Bot:
		return reasonBot
	}
	// Our own texts break names with a word joiner, and people copy from them.
	m.Text = strings.ReplaceAll(m.Text, "@\u2060", "@")
	text, ok := addressed(m, p.conf.Trigger)
	if !ok && (p.isControl(m) || p.follows(ctx, m)) {
		text, ok = strings.TrimSpace(m.Text), true
	}
	if !ok {
		return reasonMention
	}
	if p.conf.Access.RoleOf(PersonKey(m.Channel, m.Sender.ID)) == RoleNone {
		return reasonAccess
	}
	m.Text = text
	return ""
}

// chain puts a message into the thread of its chain of replies, in a channel where
// that is the conversation. A message that replies to nothing begins one.
func (p *Pipeline) chain(ctx context.Context, m *adapters.InboundMessage) error {
	if !p.conf.Channels[m.Channel].ByReply || m.Thread != "" || m.Kind != adapters.KindText {
		return nil
	}
	root := m.ID
	if m.Quote != nil {
		root = m.Quote.ID
		switch thread, err := p.conf.Store.ThreadOf(ctx, m.Channel, m.Room, *m.Quote); {
		case err == nil && thread != "":
			m.Thread = thread
			return nil
		case err != nil && !errors.Is(err, ErrNotFound):
			return fmt.Errorf("find the chain of replies: %w", err)
		}
	}
	m.Thread = adapters.ThreadID("chain " + root)
	return nil
}

// isControl reports whether a message steers work in its thread and so needs no
// mention: a stop while the bot is busy, or the answer to its question.
func (p *Pipeline) isControl(m *adapters.InboundMessage) bool {
	name, args := parseCommand(strings.TrimSpace(m.Text))
	switch name {
	case "stop":
		if args != "" {
			return false
		}
	case "approve", "deny":
	default:
		return false
	}
	p.mu.Lock()
	w := p.workers[m.Key()]
	p.mu.Unlock()
	return w != nil // a thread has a worker only while there is work
}

// follows reports whether everything in the message's thread is for the bot.
func (p *Pipeline) follows(ctx context.Context, m *adapters.InboundMessage) bool {
	if !p.conf.FollowThreads || m.Thread == "" {
		return false
	}
	_, err := p.conf.Store.Thread(ctx, m.Key())
	return err == nil
}

// bare is a message without anything that somebody wrote.
func bare(m adapters.InboundMessage) adapters.InboundMessage {
	m.Text, m.RoomName, m.Quote, m.Attachments = "", "", nil, nil
	m.Sender.Name = ""
	return m
}

func (p *Pipeline) denied(m *adapters.InboundMessage) AuditEntry {
	return AuditEntry{
		At: p.conf.Now().UTC(), Class: "access_denied", Key: m.Channel, Room: m.Room,
		Person: PersonKey(m.Channel, m.Sender.ID), Detail: "message " + string(m.ID),
	}
}

// about is what the model is told of where it is.
func (p *Pipeline) about(ch adapters.Channel) string {
	s := fmt.Sprintf("Your name is %s.", p.conf.Name)
	if c, ok := p.conf.Channels[ch]; ok {
		s += " " + c.Adapter.About()
	}
	return s
}

// say renders one of the bot's own texts.
func (p *Pipeline) say(name string, data any) string {
	var b strings.Builder
	if err := p.conf.Texts.ExecuteTemplate(&b, name, data); err != nil {
		p.conf.Log.Error("text template failed", "template", name, "err", err)
		return "Something went wrong inside me."
	}
	return strings.TrimSpace(b.String())
}

// deliveries makes the deliveries of a text: its parts, each with a key that is
// the same whenever it is made again.
func (p *Pipeline) deliveries(kind DeliveryKind, to Target, text, key string) []Delivery {
	text = p.conf.Redact(text)
	parts := []string{text}
	if c, ok := p.conf.Channels[to.Key.Channel]; ok {
		parts = c.Adapter.Split(text)
	}
	now := p.conf.Now().UTC()
	ds := make([]Delivery, len(parts))
	for i, part := range parts {
		ds[i] = Delivery{
			Kind: kind, Part: i + 1, Target: to, Text: part, State: Pending,
			Key: deliveryKey(key, string(kind), fmt.Sprint(i+1)), NextAt: now, CreatedAt: now,
		}
	}
	return ds
}

// deliveryKey makes a key of what makes a delivery the same.
func deliveryKey(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
