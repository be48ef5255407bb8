package storage

import (
	"context"
	"time"

	"trill/pipeline"
)

// putAudit appends an entry; at is for one that does not say when.
func putAudit(ctx context.Context, t *tx, e pipeline.AuditEntry, at time.Time) error {
	if e.At.IsZero() {
		e.At = at
	}
	const q = `
		INSERT INTO audit (at, class, channel, room, person, detail)
		VALUES ($1, $2, $3, $4, $5, $6)`
	_, err := t.exec(ctx, q, micros(e.At), e.Class, e.Key, e.Room, e.Person, e.Detail)
	return err
}

// Audit implements [pipeline.Store].
func (db *DB) Audit(ctx context.Context, es ...pipeline.AuditEntry) error {
	if len(es) == 0 {
		return nil
	}
	now := db.now()
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		for _, e := range es {
			if err := putAudit(ctx, t, e, now); err != nil {
				return err
			}
		}
		return nil
	})
}

// AuditLog implements [pipeline.Store].
func (db *DB) AuditLog(ctx context.Context, limit int) ([]pipeline.AuditEntry, error) {
	const q = `SELECT id, at, class, channel, room, person, detail FROM audit ORDER BY id DESC LIMIT $1`
	return all(ctx, db, func(s scanner) (e pipeline.AuditEntry, err error) {
		var at int64
		err = s.Scan(&e.ID, &at, &e.Class, &e.Key, &e.Room, &e.Person, &e.Detail)
		e.At = fromMicros(at)
		return e, err
	}, q, limit)
}
