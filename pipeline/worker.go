package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"trill/adapters"
	"trill/engine"
)

// worker owns one busy thread: it takes the thread's messages in order, answers
// commands at once, and has at most one run under way. An idle thread has none.
type worker struct {
	p       *Pipeline
	key     adapters.ThreadKey
	bell    chan struct{} // capacity 1: there is something new
	stale   atomic.Bool   // what is open must be read from the store
	running bool          // guarded by Pipeline.mu: work was started

	mu       sync.Mutex // guards what follows
	received []InboxRow // not yet looked at
	waiting  []InboxRow // work that waits for the run before it
	run      *activeRun

	tries int // steps in a row that ended in an error; of work alone
}

// wake hands a new message to the thread's worker, and makes one if need be.
// Without a message the worker reads from the store what is open.
func (p *Pipeline) wake(key adapters.ThreadKey, row *InboxRow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[key]
	if w == nil {
		w = &worker{p: p, key: key, bell: make(chan struct{}, 1)}
		p.workers[key] = w
	}
	if row != nil && p.started {
		w.mu.Lock()
		w.received = append(w.received, *row)
		w.mu.Unlock()
	} else {
		w.stale.Store(true)
	}
	if p.started && !w.running {
		w.running = true
		p.wg.Go(func() { w.work(p.ctx) })
	}
	w.signal()
}

func (w *worker) signal() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// interrupt ends the worker's run, if it has one.
func (w *worker) interrupt(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != nil {
		w.run.cancel(cause)
	}
}

// work is the worker's life: from the first message until the thread is idle.
func (w *worker) work(ctx context.Context) {
	for {
		err := w.step(ctx)
		if err != nil {
			w.tries++
			w.p.conf.Log.ErrorContext(ctx, "thread is stuck", "channel", w.key.Channel, "room", w.key.Room, "thread", w.key.Thread, "try", w.tries, "err", err)
		} else {
			w.tries = 0
		}
		var again <-chan time.Time
		if err != nil {
			again = time.After(w.p.conf.Backoff.wait(w.tries))
		}
		w.mu.Lock()
		var ended <-chan struct{}
		if w.run != nil {
			ended = w.run.done
		}
		w.mu.Unlock()
		if w.leave(err != nil) {
			return
		}
		select {
		case <-w.bell:
		case <-ended:
		case <-again:
		}
	}
}

// leave takes the worker out when there is nothing left to do, or when the
// process ends and no run of the thread is under way.
func (w *worker) leave(stuck bool) bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != nil {
		return false
	}
	if w.p.started && (stuck || w.stale.Load() || len(w.received)+len(w.waiting) > 0) {
		return false
	}
	delete(w.p.workers, w.key)
	return true
}

// step does what can be done now. After an error everything that is still open
// is tried again.
func (w *worker) step(ctx context.Context) error {
	if err := w.reap(); err != nil {
		return err
	}
	if w.ending() {
		return nil
	}
	if w.stale.Load() {
		if err := w.load(ctx); err != nil {
			return err
		}
	}
	for {
		w.mu.Lock()
		if len(w.received) == 0 {
			w.mu.Unlock()
			break
		}
		row := w.received[0]
		w.mu.Unlock()
		if err := w.guarded(ctx, row); err != nil {
			return err
		}
		w.mu.Lock()
		if len(w.received) > 0 && w.received[0].ID == row.ID {
			w.received = w.received[1:]
		}
		w.mu.Unlock()
	}
	return w.startNext(ctx)
}

// ending reports whether the process is about to end.
func (w *worker) ending() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return !w.p.started
}

// reap takes the result of a run that is over. One that could not be ended in
// the database is taken up again.
func (w *worker) reap() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run == nil {
		return nil
	}
	select {
	case <-w.run.done:
	default:
		return nil
	}
	err := w.run.err
	w.run = nil
	if err != nil && !errors.Is(err, errShutdown) {
		w.stale.Store(true)
		return err
	}
	return nil
}

// load reads what an earlier process, or an earlier try, left open.
func (w *worker) load(ctx context.Context) error {
	w.stale.Store(false) // first: what comes in meanwhile makes it stale again
	if err := w.read(ctx); err != nil {
		w.stale.Store(true)
		return err
	}
	return nil
}

func (w *worker) read(ctx context.Context) error {
	rows, err := w.p.conf.Store.Open(ctx, w.key)
	if err != nil {
		return fmt.Errorf("read open messages: %w", err)
	}
	w.mu.Lock()
	busy := w.run != nil
	w.mu.Unlock()
	if !busy {
		switch run, err := w.p.conf.Store.OpenRun(ctx, w.key); {
		case err == nil:
			w.launch(ctx, run)
		case !errors.Is(err, ErrNotFound):
			return fmt.Errorf("read open run: %w", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// What came in since the rows were read is not among them.
	w.received = slices.DeleteFunc(w.received, func(r InboxRow) bool {
		return slices.ContainsFunc(rows, func(o InboxRow) bool { return o.ID == r.ID })
	})
	w.waiting = nil
	for i, r := range rows {
		if r.State == Waiting {
			w.waiting = append(w.waiting, r)
		} else {
			w.received = slices.Insert(w.received, i-len(w.waiting), r)
		}
	}
	return nil
}

const (
	// maxTries is how often a message is tried before it is given up.
	maxTries = 3
	// maxAttempts is how many processes work on a run before it is given up. It
	// is more, as a process may have ended for reasons of its own.
	maxAttempts = 6
)

// guarded handles a message so that one that breaks us does not break the
// thread.
func (w *worker) guarded(ctx context.Context, row InboxRow) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err = fmt.Errorf("handle message %s: panic: %v", row.Message.ID, v)
		if w.tries+1 < maxTries {
			return
		}
		w.p.conf.Log.ErrorContext(ctx, "message given up", "message", row.Message.ID, "err", err)
		err = w.p.conf.Store.Settle(ctx, Settle{
			Row: row.ID, State: Dead, Reason: "gave up after several tries",
			Deliveries: w.p.reply(row, w.p.say("gave-up", nil)), At: w.p.conf.Now().UTC(),
		})
		w.p.out.wake(w.key)
	}()
	return w.handle(ctx, row)
}

// handle decides about one message: over a limit, a command, or work.
func (w *worker) handle(ctx context.Context, row InboxRow) error {
	p := w.p
	now := p.conf.Now()
	person := PersonKey(row.Message.Channel, row.Message.Sender.ID)
	role := p.conf.Access.RoleOf(person)
	if role == RoleNone { // the configuration changed since it was accepted
		audit := p.denied(&row.Message)
		return gone(p.conf.Store.Settle(ctx, Settle{Row: row.ID, State: Ignored, Reason: reasonAccess, Audit: &audit, At: now.UTC()}))
	}
	if cmd, args, ok := p.command(row.Message.Text); ok {
		return p.runCommand(ctx, w, cmd, args, row, person, role)
	}
	if ok, wait, tell := p.limits.allow(now, person, string(row.Message.Channel)+":"+string(row.Message.Room)); !ok {
		s := Settle{Row: row.ID, State: Ignored, Reason: reasonLimit, At: now.UTC()}
		if tell {
			s.Deliveries = p.reply(row, p.say("limit", wait.Round(time.Minute)+time.Minute))
		}
		err := gone(p.conf.Store.Settle(ctx, s))
		p.out.wake(w.key)
		return err
	}
	if row.Message.Text == "" && row.Message.Quote == nil && len(row.Message.Attachments) == 0 {
		err := gone(p.conf.Store.Settle(ctx, Settle{
			Row: row.ID, State: Done, Reason: "empty", Deliveries: p.reply(row, p.say("empty", nil)), At: now.UTC(),
		}))
		p.out.wake(w.key)
		return err
	}
	w.mu.Lock()
	free := w.run == nil && len(w.waiting) == 0
	w.mu.Unlock()
	if free {
		return w.start(ctx, row)
	}
	if err := p.conf.Store.Wait(ctx, row.ID); err != nil {
		return gone(err)
	}
	w.mu.Lock()
	w.waiting = append(w.waiting, row)
	w.mu.Unlock()
	return nil
}

// gone takes ErrGone for success: the row was settled by an earlier try whose
// result was not seen.
func gone(err error) error {
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// startNext begins the next run when none is under way.
func (w *worker) startNext(ctx context.Context) error {
	for {
		w.mu.Lock()
		if w.run != nil || len(w.waiting) == 0 {
			w.mu.Unlock()
			return nil
		}
		row := w.waiting[0]
		w.mu.Unlock()
		if err := w.start(ctx, row); err != nil {
			return err
		}
		w.mu.Lock()
		if len(w.waiting) > 0 && w.waiting[0].ID == row.ID {
			w.waiting = w.waiting[1:]
		}
		w.mu.Unlock()
	}
}

// start makes a message into a run.
func (w *worker) start(ctx context.Context, row InboxRow) error {
	p := w.p
	m := &row.Message
	person := PersonKey(m.Channel, m.Sender.ID)
	now := p.conf.Now().UTC()
	run, err := p.conf.Store.StartRun(ctx, StartRun{
		Row: row,
		Run: Run{
			ID: engine.NewRunID(), Inbox: row.ID, Target: Target{Key: w.key, ReplyTo: m.ReplyTo},
			Person: person, Role: p.conf.Access.RoleOf(person), Attempts: 1, StartedAt: now,
		},
		NewSession: engine.NewSessionID(),
		User:       userEvent(row, false),
		At:         now,
	})
	if errors.Is(err, ErrGone) {
		// Steered into the run before, or begun by a try whose result was not
		// seen; then the run is there to be taken up.
		return w.load(ctx)
	}
	if err != nil {
		return fmt.Errorf("start run: %w", err)
	}
	w.launch(ctx, run)
	return nil
}

// steered drops the rows that a run took in.
func (w *worker) steered(person string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.waiting[:0:0]
	for _, row := range w.waiting {
		if PersonKey(row.Message.Channel, row.Message.Sender.ID) != person {
			kept = append(kept, row)
		}
	}
	w.waiting = kept
}

// drop settles what a person has added to a run that is being stopped.
func (w *worker) drop(ctx context.Context, person string) error {
	w.mu.Lock()
	rows := slices.Clone(w.waiting)
	w.mu.Unlock()
	for _, row := range rows {
		if PersonKey(row.Message.Channel, row.Message.Sender.ID) != person {
			continue
		}
		err := w.p.conf.Store.Settle(ctx, Settle{Row: row.ID, State: Done, Reason: "stopped before it began", At: w.p.conf.Now().UTC()})
		if gone(err) != nil {
			return err
		}
	}
	w.steered(person)
	return nil
}

// wants reports whether somebody added to the run of the person.
func (w *worker) wants(person string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, row := range w.waiting {
		if PersonKey(row.Message.Channel, row.Message.Sender.ID) == person {
			return true
		}
	}
	return false
}

// reply makes the deliveries that answer a message without a run.
func (p *Pipeline) reply(row InboxRow, text string) []Delivery {
	ds := p.deliveries(KindReply, Target{Key: row.Message.Key(), ReplyTo: row.Message.ReplyTo}, text, fmt.Sprintf("inbox/%d", row.ID))
	for i := range ds {
		ds[i].Inbox = row.ID
	}
	return ds
}

// wait is how long to wait after so many tries: full jitter.
func (b Backoff) wait(tries int) time.Duration {
	most := b.Cap
	if tries < 30 {
		most = min(most, b.Base<<max(tries-1, 0))
	}
	return rand.N(most + 1)
}
