package storage

import (
	"context"

	"trill/adapters"
	"trill/pipeline"
)

// SetBlock implements [pipeline.Store].
func (db *DB) SetBlock(ctx context.Context, b pipeline.Block) error {
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		const q = `
			INSERT INTO blocks (channel, room, reason, since, until_at)
			VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (channel, room)
			DO UPDATE SET reason = excluded.reason, since = excluded.since, until_at = excluded.until_at`
		_, err := t.exec(ctx, q, b.Channel, b.Room, b.Reason, micros(b.Since), micros(b.Until))
		return err
	})
}

// LiftBlock implements [pipeline.Store].
func (db *DB) LiftBlock(ctx context.Context, ch adapters.Channel, room adapters.RoomID) error {
	return db.write(ctx, func(ctx context.Context, t *tx) error { return lift(ctx, t, ch, room) })
}

func lift(ctx context.Context, t *tx, ch adapters.Channel, room adapters.RoomID) error {
	_, err := t.exec(ctx, `DELETE FROM blocks WHERE channel = $1 AND room = $2`, ch, room)
	return err
}

// Blocks implements [pipeline.Store].
func (db *DB) Blocks(ctx context.Context) ([]pipeline.Block, error) {
	const q = `SELECT channel, room, reason, since, until_at FROM blocks ORDER BY channel, room`
	return all(ctx, db, func(s scanner) (b pipeline.Block, err error) {
		var since, until int64
		err = s.Scan(&b.Channel, &b.Room, &b.Reason, &since, &until)
		b.Since, b.Until = fromMicros(since), fromMicros(until)
		return b, err
	}, q)
}
