package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"trill/engine"
	"trill/engine/session"
)

// activeRun is a run that this process works on.
type activeRun struct {
	Run
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // set before done is closed; nil when the run is ended
	// slot says that the run has one of the slots; of its goroutine alone.
	slot bool

	signs    context.CancelFunc // stops acks and status messages
	signsEnd sync.WaitGroup
}

// userEvent is what a message becomes in the transcript.
func userEvent(row InboxRow, steered bool) session.User {
	m := &row.Message
	u := session.User{
		Text: m.Text, Name: m.Sender.Name, Person: PersonKey(m.Channel, m.Sender.ID), Steered: steered,
	}
	if m.Quote != nil && !m.Quote.Sender.Self {
		u.Quoted = m.Quote.Text
	}
	for _, a := range m.Attachments {
		line := a.Name
		if a.MIME != "" {
			line += ", " + a.MIME
		}
		if a.Size > 0 {
			line += fmt.Sprintf(", %d bytes", a.Size)
		}
		u.Attachments = append(u.Attachments, line)
	}
	return u
}

// launch begins to work on a run in a goroutine of its own.
func (w *worker) launch(ctx context.Context, run Run) {
	a := &activeRun{Run: run, done: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	if run.Stop != "" {
		a.cancel(engine.ErrStopped)
	}
	w.mu.Lock()
	w.run = a
	w.mu.Unlock()
	w.p.wg.Go(func() {
		defer close(a.done)
		defer a.cancel(nil)
		a.err = w.p.exec(w, a)
	})
}

// exec works on a run until it is over. An error means that it is still open.
func (p *Pipeline) exec(w *worker, a *activeRun) (err error) {
	log := p.conf.Log.With("session", a.Session, "run", a.ID, "channel", a.Target.Key.Channel)
	// A run that was stopped is ended without a slot: that takes no time.
	if err := p.takeSlot(a.ctx, a); err != nil && !errors.Is(err, engine.ErrStopped) {
		return err
	}
	defer p.leaveSlot(a)

	req := engine.Request{
		Session: a.Session, Run: a.ID, Person: a.Person, Role: string(a.Role),
		Channel: string(a.Target.Key.Channel), About: p.about(a.Target.Key.Channel),
		Approve: func(ctx context.Context, ask engine.Ask) (engine.Approval, error) { return p.approve(ctx, a, ask) },
		Steer: func(ctx context.Context, next int64) ([]session.Event, error) {
			return p.steer(ctx, w, a, next)
		},
		Finish: func(ctx context.Context, last []session.Event) error { return p.finish(ctx, a, last) },
	}
	if req.Workspace, err = p.workspace(a); err != nil {
		log.Error("no workspace", "err", err)
		return p.conf.Engine.GiveUp(a.ctx, req, err, p.say("no-workspace", nil))
	}
	if a.Attempts > maxAttempts {
		log.Error("run given up", "attempts", a.Attempts)
		return p.conf.Engine.GiveUp(a.ctx, req, fmt.Errorf("given up after %d attempts", a.Attempts-1), p.say("gave-up", nil))
	}
	p.showSigns(a)
	defer a.stopSigns()
	defer func() {
		if v := recover(); v != nil {
			log.Error("run broke", "err", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = p.conf.Engine.GiveUp(a.ctx, req, fmt.Errorf("panic: %v", v), p.say("gave-up", nil))
		}
	}()
	for ev, err := range p.conf.Engine.Run(a.ctx, req) {
		if err != nil {
			return err
		}
		if ev.Stored != nil {
			p.conf.Observer.RunEvent(*ev.Stored)
		}
	}
	return nil
}

// takeSlot waits until the run may work; the error is why ctx ended first.
func (p *Pipeline) takeSlot(ctx context.Context, a *activeRun) error {
	select {
	case p.slots <- struct{}{}:
		a.slot = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leaveSlot lets another run work.
func (p *Pipeline) leaveSlot(a *activeRun) {
	if a.slot {
		<-p.slots
		a.slot = false
	}
}

// workspace is the folder of a run: the project's, except for guests, who see
// nothing but their own.
func (p *Pipeline) workspace(a *activeRun) (string, error) {
	if a.Project == "" || a.Role == RoleGuest {
		dir, err := p.conf.Workspace(a.Session)
		if err != nil {
			return "", err
		}
		return filepath.Abs(dir)
	}
	pr, ok := p.conf.Projects[a.Project]
	if !ok {
		return "", fmt.Errorf("project %q is no longer configured", a.Project)
	}
	return pr.Path, nil
}

// steer takes in what the person who asked has added. Other people's messages
// become runs of their own: a run has the rights of the person who asked for it,
// and its answer goes to that person.
func (p *Pipeline) steer(ctx context.Context, w *worker, a *activeRun, next int64) ([]session.Event, error) {
	if !w.wants(a.Person) {
		return nil, nil
	}
	evs, err := p.conf.Store.Steer(ctx, Steer{
		Run: a.Run, Next: next, At: p.conf.Now().UTC(),
		Person: func(r InboxRow) string { return PersonKey(r.Message.Channel, r.Message.Sender.ID) },
		Event:  func(r InboxRow) session.User { return userEvent(r, true) },
	})
	if err != nil {
		return nil, err
	}
	w.steered(a.Person)
	return evs, nil
}

// finish ends a run together with its answer.
func (p *Pipeline) finish(ctx context.Context, a *activeRun, last []session.Event) error {
	a.stopSigns()
	end := last[len(last)-1].Data.(*session.End)
	f := FinishRun{
		Run: a.ID, Reason: end.Reason, Events: last, At: p.conf.Now().UTC(), Stopped: end.Reason == session.EndStopped,
	}
	if end.Text != "" {
		f.Deliveries = p.deliveries(KindAnswer, a.Target, end.Text, "run/"+string(a.ID))
		for i := range f.Deliveries {
			f.Deliveries[i].Run, f.Deliveries[i].Inbox = a.ID, a.Inbox
		}
	}
	err := p.conf.Store.FinishRun(ctx, f)
	if errors.Is(err, ErrStopRequested) {
		// It was stopped while it was about to answer: nobody wants to hear it.
		end.Reason, end.Text = session.EndStopped, ""
		f.Reason, f.Deliveries, f.Stopped = session.EndStopped, nil, true
		err = p.conf.Store.FinishRun(ctx, f)
	}
	if err != nil {
		return err
	}
	p.conf.Observer.RunEnded(f.Reason, f.At.Sub(a.StartedAt))
	p.out.wake(a.Target.Key)
	return nil
}

// showSigns lets the people see that a run is at work: a reaction on their
// message, and later one short message. Both are deliveries like any other.
func (p *Pipeline) showSigns(a *activeRun) {
	ctx, cancel := context.WithCancel(a.ctx)
	a.signs = cancel
	if ch, ok := p.conf.Channels[a.Target.Key.Channel]; ok && p.conf.Ack && reacts(ch.Adapter) && a.Target.ReplyTo != "" {
		a.signsEnd.Go(func() { p.sign(ctx, a, p.conf.AckAfter, KindAck, ackEmoji) })
	}
	if p.conf.StatusAfter > 0 {
		a.signsEnd.Go(func() { p.sign(ctx, a, p.conf.StatusAfter, KindStatus, "") })
	}
}

// ackEmoji says "I have seen it".
const ackEmoji = "👀"

func (p *Pipeline) sign(ctx context.Context, a *activeRun, after time.Duration, kind DeliveryKind, text string) {
	t := time.NewTimer(after - p.conf.Now().Sub(a.StartedAt))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return
	case <-t.C:
	}
	if kind == KindStatus {
		text = p.say("working", nil)
	}
	now := p.conf.Now().UTC()
	d := Delivery{
		Kind: kind, Run: a.ID, Inbox: a.Inbox, Part: 1, Target: a.Target, Text: text, State: Pending,
		Key: deliveryKey("run/"+string(a.ID), string(kind)), NextAt: now, CreatedAt: now,
	}
	if err := p.conf.Store.Enqueue(ctx, []Delivery{d}); err != nil {
		if ctx.Err() == nil {
			p.conf.Log.Error("sign of life not stored", "run", a.ID, "err", err)
		}
		return
	}
	p.out.wake(a.Target.Key)
}

// stopSigns returns when no further sign will be stored.
func (a *activeRun) stopSigns() {
	if a.signs != nil {
		a.signs()
		a.signsEnd.Wait()
	}
}

// projectNames lists the configured projects for people.
func (p *Pipeline) projectNames() string {
	var b strings.Builder
	for _, name := range sortedKeys(p.conf.Projects) {
		fmt.Fprintf(&b, "\n- `%s`", name)
		if d := p.conf.Projects[name].Description; d != "" {
			fmt.Fprintf(&b, ": %s", d)
		}
	}
	return b.String()
}
