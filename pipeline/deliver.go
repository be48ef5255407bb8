package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"trill/adapters"
)

const (
	// sendTimeout bounds one request to a platform. A server that slows down a
	// caller takes its time, and giving up early leaves an outcome unknown.
	sendTimeout = 60 * time.Second
	// giveUpAfter is how long a delivery is tried before an operator decides.
	giveUpAfter = 24 * time.Hour
	// probeAfter is how long a blocked room is left alone before a new message
	// from it counts as a sign that sending may work again.
	probeAfter = 30 * time.Minute
	// maxSends bounds the requests under way to all platforms together.
	maxSends = 64
)

// room is where deliveries are sent one after the other.
type room struct {
	channel adapters.Channel
	id      adapters.RoomID
}

// dispatcher sends what is in the outbox: in order within a room, rooms side by
// side. A busy room has one goroutine; an idle one has none.
type dispatcher struct {
	conf  Config
	slots chan struct{}

	wg     sync.WaitGroup
	mu     sync.Mutex // guards what follows
	ctx    context.Context
	cancel context.CancelFunc
	rooms  map[room]chan struct{} // the bell of each busy room
	blocks map[room]Block
}

func newDispatcher(conf Config) *dispatcher {
	return &dispatcher{
		conf: conf, slots: make(chan struct{}, maxSends),
		rooms: map[room]chan struct{}{}, blocks: map[room]Block{},
	}
}

// start takes up what an earlier process left.
func (d *dispatcher) start(ctx context.Context) error {
	blocks, err := d.conf.Store.Blocks(ctx)
	if err != nil {
		return fmt.Errorf("read blocks: %w", err)
	}
	keys, err := d.conf.Store.OpenRooms(ctx)
	if err != nil {
		return fmt.Errorf("take up open deliveries: %w", err)
	}
	d.mu.Lock()
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, b := range blocks {
		d.blocks[room{b.Channel, b.Room}] = b
	}
	d.mu.Unlock()
	for _, key := range keys {
		d.wake(key)
	}
	return nil
}

// stop lets requests under way end, and sends what is due, as long as ctx
// allows.
func (d *dispatcher) stop(ctx context.Context) {
	d.mu.Lock()
	for _, bell := range d.rooms {
		close(bell) // nobody waits any more for what is not yet due
	}
	d.rooms = nil
	d.mu.Unlock()
	done := make(chan struct{})
	go func() { d.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	d.cancel()
	<-done
}

// wake says that the room of the thread has something to send.
func (d *dispatcher) wake(key adapters.ThreadKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rooms == nil || d.ctx == nil {
		return // before start, or after stop: the outbox is read at the next start
	}
	r := room{key.Channel, key.Room}
	bell, ok := d.rooms[r]
	if !ok {
		bell = make(chan struct{}, 1)
		d.rooms[r] = bell
		d.wg.Go(func() { d.serve(d.ctx, r, bell) })
	}
	select {
	case bell <- struct{}{}:
	default:
	}
}

// serve sends a room's deliveries until there are none.
func (d *dispatcher) serve(ctx context.Context, r room, bell chan struct{}) {
	failures := 0
	for stopping := false; ctx.Err() == nil; {
		wait, err := d.next(ctx, r)
		if err != nil && ctx.Err() == nil {
			failures++
			wait = d.conf.Backoff.wait(failures)
			d.conf.Log.ErrorContext(ctx, "outbox is stuck", "channel", r.channel, "room", r.id, "err", err)
		} else {
			failures = 0
		}
		if wait == 0 {
			continue
		}
		if stopping {
			return
		}
		if wait == idle {
			d.mu.Lock()
			select {
			case _, open := <-bell: // woken between the look and the lock
				d.mu.Unlock()
				stopping = !open
				continue
			default:
			}
			delete(d.rooms, r)
			d.mu.Unlock()
			return
		}
		t := time.NewTimer(wait)
		select {
		case _, open := <-bell:
			stopping = !open
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// idle as a wait means that there is nothing to wait for.
const idle = time.Duration(-1)

// next sends the room's next delivery, or returns how long to wait for it.
func (d *dispatcher) next(ctx context.Context, r room) (time.Duration, error) {
	if wait := d.blocked(r); wait != 0 {
		return wait, nil
	}
	dl, err := d.conf.Store.NextDelivery(ctx, r.channel, r.id)
	if errors.Is(err, ErrNotFound) {
		return idle, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read outbox: %w", err)
	}
	due := dl.NextAt
	if dl.State == Ambiguous {
		due = due.Add(d.conf.Backoff.Settle)
	}
	if wait := due.Sub(d.conf.Now()); wait > 0 {
		return wait, nil
	}
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, nil
	}
	defer func() { <-d.slots }()
	return 0, d.send(ctx, dl)
}

// send brings one delivery a step further.
func (d *dispatcher) send(ctx context.Context, dl Delivery) error {
	ch, ok := d.conf.Channels[dl.Target.Key.Channel]
	if !ok {
		return d.move(ctx, dl, Held, errors.New("the channel is no longer configured"))
	}
	if dl.State == Ambiguous {
		return d.settle(ctx, ch, dl)
	}
	if d.conf.Now().Sub(dl.CreatedAt) > giveUpAfter {
		return d.move(ctx, dl, Held, fmt.Errorf("not sent within %v; the last error was: %s", giveUpAfter, dl.Error))
	}
	call, done := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
	defer done()
	stop := context.AfterFunc(ctx, done)
	defer stop()

	if dl.Kind == KindAck {
		re, ok := ch.Adapter.(adapters.Reactor)
		if !ok {
			return d.move(ctx, dl, Dropped, errors.New("the platform has no reactions"))
		}
		// Doing it twice is the same as once, so nothing is recorded before.
		from := dl.State
		dl.Attempts++
		err := re.React(call, adapters.Reaction{Room: dl.Target.Key.Room, Message: dl.Target.ReplyTo, Emoji: dl.Text})
		return d.result(ctx, dl, from, "", err)
	}
	sending := dl
	sending.State, sending.Attempts, sending.NextAt = Sending, dl.Attempts+1, d.conf.Now().UTC()
	if err := d.conf.Store.UpdateDelivery(ctx, dl.State, sending); err != nil {
		return gone(err) // an operator was first
	}
	id, err := ch.Adapter.Send(call, adapters.OutboundMessage{
		Room: dl.Target.Key.Room, Thread: dl.Target.Key.Thread, ReplyTo: dl.Target.ReplyTo, Text: dl.Text, Key: dl.Key,
		Silent: dl.Kind == KindStatus,
	})
	return d.result(ctx, sending, Sending, id, err)
}

// result stores what came of a try.
func (d *dispatcher) result(ctx context.Context, dl Delivery, from DeliveryState, id adapters.MessageID, err error) error {
	ctx = context.WithoutCancel(ctx) // it happened, so it is recorded
	now := d.conf.Now().UTC()
	r := room{dl.Target.Key.Channel, dl.Target.Key.Room}
	dl.NextAt, dl.Error = now, ""
	if err == nil {
		dl.State, dl.RemoteID, dl.SentAt = Sent, id, now
		return d.update(ctx, from, dl)
	}
	se, ok := errors.AsType[*adapters.SendError](err)
	if !ok {
		se = &adapters.SendError{Retry: true, Ambiguous: true, Err: err}
	}
	dl.Error = d.conf.Redact(se.Error())
	wait := max(d.conf.Backoff.wait(dl.Attempts), se.After)
	switch {
	case se.Resplit:
		parts := d.conf.Channels[r.channel].Adapter.Split(dl.Text)
		if len(parts) < 2 {
			parts = halves(dl.Text)
		}
		if len(parts) > 1 {
			d.conf.Observer.Delivered(r.channel, dl.Kind, Rejected)
			return d.conf.Store.Resplit(ctx, dl.ID, parts)
		}
		dl.State = Rejected
	case se.Scope == adapters.ScopeRoom && !se.Retry:
		if err := d.block(ctx, Block{Channel: r.channel, Room: r.id, Reason: dl.Error, Since: now}); err != nil {
			return err
		}
		dl.State = Pending // waits until the block is lifted
	case se.Scope == adapters.ScopeChannel:
		if err := d.block(ctx, Block{Channel: r.channel, Reason: dl.Error, Since: now, Until: now.Add(wait)}); err != nil {
			return err
		}
		dl.State, dl.NextAt = Pending, now.Add(wait)
	case se.Ambiguous && from == Sending:
		dl.State, dl.NextAt = Ambiguous, now.Add(wait)
	case se.Retry:
		dl.State, dl.NextAt = Pending, now.Add(wait)
	default:
		dl.State = Rejected
	}
	d.conf.Log.WarnContext(ctx, "delivery failed", "channel", r.channel, "room", r.id, "delivery", dl.ID, "try", dl.Attempts, "state", dl.State, "err", dl.Error)
	return d.update(ctx, from, dl)
}

// settle finds out what became of a message whose posting nobody saw: the adapter
// looks, or, where it cannot, the channel's configuration decides.
func (d *dispatcher) settle(ctx context.Context, ch Channel, dl Delivery) error {
	id, found, err := d.find(ctx, ch, dl)
	switch {
	case errors.Is(err, adapters.ErrCannotLook) && ch.HoldAmbiguous:
		return d.move(ctx, dl, Held, errors.New("nobody saw whether it was posted, and ambiguous = \"hold\""))
	case errors.Is(err, adapters.ErrCannotLook), err == nil && !found:
		dl.State, dl.NextAt = Pending, d.conf.Now().UTC()
	case err != nil:
		if d.conf.Now().Sub(dl.CreatedAt) > giveUpAfter {
			return d.move(ctx, dl, Held, fmt.Errorf("nobody saw whether it was posted, and looking fails: %w", err))
		}
		dl.Attempts++
		dl.NextAt = d.conf.Now().UTC().Add(d.conf.Backoff.wait(dl.Attempts))
		dl.Error = d.conf.Redact(err.Error())
	default:
		dl.State, dl.RemoteID, dl.SentAt, dl.Error = Sent, id, d.conf.Now().UTC(), ""
	}
	return d.update(ctx, Ambiguous, dl)
}

func (d *dispatcher) find(ctx context.Context, ch Channel, dl Delivery) (adapters.MessageID, bool, error) {
	f, ok := ch.Adapter.(adapters.Finder)
	if !ok {
		return "", false, adapters.ErrCannotLook
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return f.Find(ctx, adapters.OutboundMessage{
		Room: dl.Target.Key.Room, Thread: dl.Target.Key.Thread, ReplyTo: dl.Target.ReplyTo, Text: dl.Text, Key: dl.Key,
	}, dl.CreatedAt)
}

// move ends a delivery's tries.
func (d *dispatcher) move(ctx context.Context, dl Delivery, to DeliveryState, why error) error {
	from := dl.State
	dl.State, dl.Error = to, why.Error()
	d.conf.Log.WarnContext(ctx, "delivery put aside", "channel", dl.Target.Key.Channel, "room", dl.Target.Key.Room, "delivery", dl.ID, "state", to, "err", why)
	return d.update(ctx, from, dl)
}

func (d *dispatcher) update(ctx context.Context, from DeliveryState, dl Delivery) error {
	if err := gone(d.conf.Store.UpdateDelivery(ctx, from, dl)); err != nil {
		return fmt.Errorf("record delivery %d as %s: %w", dl.ID, dl.State, err)
	}
	d.conf.Observer.Delivered(dl.Target.Key.Channel, dl.Kind, dl.State)
	return nil
}

// blocked returns how long the room must wait for a block to end: 0 when there
// is none, idle when only somebody else can lift it.
func (d *dispatcher) blocked(r room) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := time.Duration(0)
	for _, k := range []room{{channel: r.channel}, r} {
		b, ok := d.blocks[k]
		switch {
		case !ok:
		case b.Until.IsZero():
			return idle
		default:
			left := b.Until.Sub(d.conf.Now())
			if left <= 0 {
				delete(d.blocks, k) // the stored one has run out as well
				continue
			}
			wait = max(wait, left)
		}
	}
	return wait
}

func (d *dispatcher) block(ctx context.Context, b Block) error {
	d.mu.Lock()
	d.blocks[room{b.Channel, b.Room}] = b
	d.mu.Unlock()
	d.conf.Log.ErrorContext(ctx, "sending is blocked", "channel", b.Channel, "room", b.Room, "until", b.Until, "err", b.Reason)
	if err := d.conf.Store.SetBlock(ctx, b); err != nil {
		return fmt.Errorf("store block: %w", err)
	}
	return nil
}

// heard takes a message from a room as a sign of what may be sent there: the bot
// was added or removed, or people still talk to it in a room that refused it.
func (d *dispatcher) heard(ctx context.Context, m *adapters.InboundMessage) {
	r := room{m.Channel, m.Room}
	if m.Kind == adapters.KindLeft {
		if err := d.block(ctx, Block{Channel: r.channel, Room: r.id, Reason: "the bot was removed from the room", Since: d.conf.Now().UTC()}); err != nil {
			d.conf.Log.ErrorContext(ctx, "block not stored", "err", err)
		}
		return
	}
	d.mu.Lock()
	b, ok := d.blocks[r]
	if !ok || m.Kind != adapters.KindJoined && d.conf.Now().Sub(b.Since) < probeAfter {
		d.mu.Unlock()
		return
	}
	delete(d.blocks, r)
	d.mu.Unlock()
	if err := d.conf.Store.LiftBlock(ctx, r.channel, r.id); err != nil {
		d.conf.Log.ErrorContext(ctx, "block not lifted", "err", err)
	}
	d.wake(m.Key())
}

// current returns the blocks in force.
func (d *dispatcher) current() []Block {
	d.mu.Lock()
	defer d.mu.Unlock()
	var bs []Block
	for _, b := range d.blocks {
		if b.Until.IsZero() || b.Until.After(d.conf.Now()) {
			bs = append(bs, b)
		}
	}
	return bs
}

// lift ends the block of a room that somebody else has lifted in the store.
func (d *dispatcher) lift(key adapters.ThreadKey) {
	d.mu.Lock()
	delete(d.blocks, room{key.Channel, key.Room})
	d.mu.Unlock()
	d.wake(key)
}

// RetryDelivery sends a held or rejected delivery again, and lifts the block of
// its room. [ErrNotFound] when there is none, [ErrGone] when it is sent or on its
// way.
func (p *Pipeline) RetryDelivery(ctx context.Context, id DeliveryID) (Delivery, error) {
	d, err := p.conf.Store.RetryDelivery(ctx, id, p.conf.Now().UTC())
	if err != nil {
		return Delivery{}, err
	}
	p.out.lift(d.Target.Key)
	return d, nil
}

// Blocks returns what cannot be sent to at the moment.
func (p *Pipeline) Blocks() []Block { return p.out.current() }

// halves cuts a text that the platform finds too long although the adapter does
// not.
func halves(s string) []string {
	r := []rune(s)
	if len(r) < 2 {
		return nil
	}
	return []string{string(r[:len(r)/2]), string(r[len(r)/2:])}
}

// reacts reports whether a platform's messages can carry an emoji.
func reacts(a adapters.ChannelAdapter) bool {
	_, ok := a.(adapters.Reactor)
	return ok
}
