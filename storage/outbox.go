package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

// gap is the distance between neighbours in a room's queue, so that a delivery
// that is split again keeps its place.
const gap = 1 << 16

const deliveryColumns = `id, kind, run, inbox, part, channel, room, thread, reply_to, text, key, state, attempts,
	next_at, error, remote_id, created_at, sent_at`

func scanDelivery(s scanner) (d pipeline.Delivery, err error) {
	var next, created, sent int64
	k := &d.Target.Key
	err = s.Scan(&d.ID, &d.Kind, &d.Run, &d.Inbox, &d.Part, &k.Channel, &k.Room, &k.Thread, &d.Target.ReplyTo, &d.Text,
		&d.Key, &d.State, &d.Attempts, &next, &d.Error, &d.RemoteID, &created, &sent)
	d.NextAt, d.CreatedAt, d.SentAt = fromMicros(next), fromMicros(created), fromMicros(sent)
	return d, err
}

// fill returns a copy of ds with what the call they came with says about them.
func (db *DB) fill(ds []pipeline.Delivery, at time.Time, run session.RunID, row pipeline.InboxID) ([]pipeline.Delivery, error) {
	at = orNow(at, db.now)
	ds = slices.Clone(ds)
	for i := range ds {
		d := &ds[i]
		if d.Key == "" {
			return nil, fmt.Errorf("delivery of kind %q has no key", d.Kind)
		}
		if d.Run == "" {
			d.Run = run
		}
		if d.Inbox == 0 {
			d.Inbox = row
		}
		if d.State == "" {
			d.State = pipeline.Pending
		}
		if d.CreatedAt.IsZero() {
			d.CreatedAt = at
		}
		if d.NextAt.IsZero() {
			d.NextAt = d.CreatedAt
		}
	}
	return ds, nil
}

// enqueue puts deliveries at the end of their rooms' queues.
func enqueue(ctx context.Context, t *tx, ds []pipeline.Delivery) error {
	const q = `
		INSERT INTO outbox (kind, ordered, run, inbox, part, channel, room, thread, reply_to, text, key, ord, state,
			attempts, next_at, error, remote_id, created_at, sent_at, owner, retried)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
			COALESCE((SELECT ord FROM outbox WHERE channel = $6 AND room = $7 ORDER BY ord DESC LIMIT 1), 0) + $12,
			$13, $14, $15, $16, $17, $18, $19, '', 0)
		ON CONFLICT (key) DO NOTHING`
	for _, d := range ds {
		k := d.Target.Key
		if _, err := t.exec(ctx, q, string(d.Kind), truth(d.Kind.Ordered()), string(d.Run), d.Inbox, d.Part, k.Channel,
			k.Room, k.Thread, string(d.Target.ReplyTo), d.Text, d.Key, gap, string(d.State), d.Attempts,
			micros(d.NextAt), d.Error, string(d.RemoteID), micros(d.CreatedAt), micros(d.SentAt)); err != nil {
			return err
		}
	}
	return nil
}

// Enqueue implements [pipeline.Store].
func (db *DB) Enqueue(ctx context.Context, ds []pipeline.Delivery) error {
	ds, err := db.fill(ds, time.Time{}, "", 0)
	if err != nil || len(ds) == 0 {
		return err
	}
	return db.write(ctx, func(ctx context.Context, t *tx) error { return enqueue(ctx, t, ds) })
}

// NextDelivery implements [pipeline.Store].
func (db *DB) NextDelivery(ctx context.Context, ch adapters.Channel, room adapters.RoomID) (pipeline.Delivery, error) {
	const q = `
		SELECT ` + deliveryColumns + ` FROM outbox
		WHERE id IN (
			(SELECT id FROM outbox
				WHERE channel = $1 AND room = $2 AND ordered = 1 AND state IN ('pending', 'sending', 'ambiguous')
				ORDER BY ord LIMIT 1),
			(SELECT id FROM outbox
				WHERE channel = $1 AND room = $2 AND ordered = 0 AND state IN ('pending', 'sending', 'ambiguous')
				ORDER BY next_at, ord LIMIT 1))
		ORDER BY next_at, ord LIMIT 1`
	return one(ctx, db, scanDelivery, q, ch, room)
}

// UpdateDelivery implements [pipeline.Store].
func (db *DB) UpdateDelivery(ctx context.Context, from pipeline.DeliveryState, d pipeline.Delivery) error {
	owner := ""
	if d.State == pipeline.Sending {
		owner = db.owner
	}
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		const q = `
			UPDATE outbox SET state = $3, attempts = $4, next_at = $5, error = $6, remote_id = $7, sent_at = $8, owner = $9
			WHERE id = $1 AND state = $2`
		return changed(t.exec(ctx, q, d.ID, string(from), string(d.State), d.Attempts, micros(d.NextAt), d.Error,
			string(d.RemoteID), micros(d.SentAt), owner))
	})
}

// dropOvertaken drops what says no more than that a run is at work.
func dropOvertaken(ctx context.Context, t *tx, run session.RunID) error {
	const q = `
		UPDATE outbox SET state = 'dropped'
		WHERE id IN (
			SELECT id FROM outbox WHERE run = $1 AND run <> ''
			UNION
			SELECT outbox.id FROM outbox JOIN inbox ON outbox.inbox = inbox.id
			WHERE inbox.run = $1 AND inbox.run <> '' AND outbox.inbox <> 0
		) AND ordered = 0 AND state = 'pending'`
	_, err := t.exec(ctx, q, string(run))
	return err
}

const selectDelivery = `SELECT ` + deliveryColumns + ` FROM outbox WHERE id = $1`

// Resplit implements [pipeline.Store]. The delivery it replaces is dropped; the
// new ones are to be sent at once, and later parts of the same text are counted
// on.
func (db *DB) Resplit(ctx context.Context, id pipeline.DeliveryID, texts []string) error {
	if len(texts) == 0 {
		return fmt.Errorf("split delivery %d: into nothing", id)
	}
	at := db.now()
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		const placed = `
			SELECT ord, COALESCE((SELECT next.ord FROM outbox AS next
				WHERE next.channel = outbox.channel AND next.room = outbox.room AND next.ord > outbox.ord
				ORDER BY next.ord LIMIT 1), ord + $2) - ord
			FROM outbox WHERE id = $1`
		place, err := one(ctx, t, func(s scanner) (p [2]int64, err error) { return p, s.Scan(&p[0], &p[1]) }, placed, id, gap)
		if err != nil {
			return err
		}
		// The first half of the room there is, for the parts; the place itself
		// stays with the delivery that is replaced.
		step := place[1] / int64(len(texts)+1)
		if step == 0 {
			return fmt.Errorf("split delivery %d: into %d parts: too many", id, len(texts))
		}
		d, err := one(ctx, t, scanDelivery, selectDelivery, id)
		if err != nil {
			return err
		}
		const drop = `
			UPDATE outbox SET state = 'dropped', error = $2
			WHERE id = $1 AND state IN ('pending', 'sending', 'ambiguous')`
		if err := changed(t.exec(ctx, drop, id, "split into "+strconv.Itoa(len(texts)))); err != nil {
			return err
		}
		const count = `
			UPDATE outbox SET part = part + $6
			WHERE channel = $1 AND room = $2 AND ord > $3 AND run = $4 AND inbox = $5 AND kind = $7
				AND ordered = $8 AND state IN ('pending', 'sending', 'ambiguous')`
		k := d.Target.Key
		if _, err := t.exec(ctx, count, k.Channel, k.Room, place[0], string(d.Run), d.Inbox, len(texts)-1,
			string(d.Kind), truth(d.Kind.Ordered())); err != nil {
			return err
		}
		const q = `
			INSERT INTO outbox (kind, ordered, run, inbox, part, channel, room, thread, reply_to, text, key, ord, state,
				attempts, next_at, error, remote_id, created_at, sent_at, owner, retried)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'pending', 0, $13, '', '', $14, 0, '', 0)`
		for i, text := range texts {
			if _, err := t.exec(ctx, q, string(d.Kind), truth(d.Kind.Ordered()), string(d.Run), d.Inbox, d.Part+i,
				k.Channel, k.Room, k.Thread, string(d.Target.ReplyTo), text, partKey(d.Key, i),
				place[0]+step*int64(i+1), micros(at), micros(d.CreatedAt)); err != nil {
				return err
			}
		}
		return nil
	})
}

// partKey is the key of a part of the delivery that had key.
func partKey(key string, part int) string {
	sum := sha256.Sum256([]byte(key + "/" + strconv.Itoa(part)))
	return hex.EncodeToString(sum[:])
}

// OpenRooms implements [pipeline.Store]. Another process that had the database
// is dead: this one has the lock.
func (db *DB) OpenRooms(ctx context.Context) ([]adapters.ThreadKey, error) {
	err := db.write(ctx, func(ctx context.Context, t *tx) error {
		const q = `
			UPDATE outbox SET state = 'ambiguous', owner = ''
			WHERE state = 'sending' AND state <> 'sent' AND owner <> $1`
		_, err := t.exec(ctx, q, db.owner)
		return err
	})
	if err != nil {
		return nil, err
	}
	const q = `
		SELECT DISTINCT channel, room, '' FROM outbox
		WHERE state IN ('pending', 'sending', 'ambiguous') ORDER BY channel, room`
	return all(ctx, db, scanKey, q)
}

// Deliveries implements [pipeline.Store].
func (db *DB) Deliveries(ctx context.Context, state pipeline.DeliveryState, limit int) ([]pipeline.Delivery, error) {
	switch state {
	case "":
		const q = `SELECT ` + deliveryColumns + ` FROM outbox ORDER BY id DESC LIMIT $1`
		return all(ctx, db, scanDelivery, q, limit)
	case pipeline.Sent: // nearly all are, so that looking from the end is quick
		const q = `SELECT ` + deliveryColumns + ` FROM outbox WHERE state = 'sent' ORDER BY id DESC LIMIT $1`
		return all(ctx, db, scanDelivery, q, limit)
	default:
		const q = `
			SELECT ` + deliveryColumns + ` FROM outbox
			WHERE state = $1 AND state <> 'sent' ORDER BY id DESC LIMIT $2`
		return all(ctx, db, scanDelivery, q, string(state), limit)
	}
}

// RetryDelivery implements [pipeline.Store]. [pipeline.ErrGone] when the delivery
// is in another state.
func (db *DB) RetryDelivery(ctx context.Context, id pipeline.DeliveryID, at time.Time) (pipeline.Delivery, error) {
	var d pipeline.Delivery
	err := db.write(ctx, func(ctx context.Context, t *tx) (err error) {
		const q = `
			UPDATE outbox SET retried = CASE WHEN state = 'pending' THEN retried ELSE 1 END,
				state = 'pending', attempts = 0, next_at = $2, error = ''
			WHERE id = $1 AND state IN ('held', 'rejected', 'pending')
			RETURNING ` + deliveryColumns
		d, err = one(ctx, t, scanDelivery, q, id, micros(at))
		if errors.Is(err, pipeline.ErrNotFound) {
			if _, there := one(ctx, t, scanDelivery, selectDelivery, id); there == nil {
				return pipeline.ErrGone
			}
			return err
		}
		if err != nil {
			return err
		}
		t.wrote = true
		return lift(ctx, t, d.Target.Key.Channel, d.Target.Key.Room)
	})
	return d, err
}
