package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

const approvalColumns = `id, code, run, call_id, digest, channel, room, thread, tool, shown, requester, state,
	decided_by, note, created_at, expires_at, decided_at`

func scanApproval(s scanner) (a pipeline.Approval, err error) {
	var created, expires, decided int64
	err = s.Scan(&a.ID, &a.Code, &a.Run, &a.CallID, &a.Digest, &a.Key.Channel, &a.Key.Room, &a.Key.Thread, &a.Tool,
		&a.Shown, &a.Requester, &a.State, &a.By, &a.Note, &created, &expires, &decided)
	a.CreatedAt, a.ExpiresAt, a.DecidedAt = fromMicros(created), fromMicros(expires), fromMicros(decided)
	return a, err
}

// AskApproval implements [pipeline.Store]. A code that another open question has
// is [pipeline.ErrGone]: ask with another one.
func (db *DB) AskApproval(ctx context.Context, a pipeline.Approval, ds []pipeline.Delivery) (pipeline.Approval, error) {
	ds, err := db.fill(ds, a.CreatedAt, a.Run, 0)
	if err != nil {
		return pipeline.Approval{}, err
	}
	var got pipeline.Approval
	err = db.write(ctx, func(ctx context.Context, t *tx) (err error) {
		const there = `SELECT ` + approvalColumns + ` FROM approvals WHERE run = $1 AND call_id = $2`
		got, err = one(ctx, t, scanApproval, there, a.Run, a.CallID)
		if !errors.Is(err, pipeline.ErrNotFound) {
			return err
		}
		const q = `
			INSERT INTO approvals (code, run, call_id, digest, channel, room, thread, tool, shown, requester, state,
				decided_by, note, created_at, expires_at, decided_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'open', '', '', $11, $12, 0)
			ON CONFLICT DO NOTHING
			RETURNING id`
		id, err := t.insert(ctx, q, a.Code, string(a.Run), a.CallID, a.Digest, a.Key.Channel, a.Key.Room, a.Key.Thread,
			a.Tool, a.Shown, a.Requester, micros(a.CreatedAt), micros(a.ExpiresAt))
		if err != nil {
			return err
		}
		if id == 0 {
			return fmt.Errorf("approval code %s is taken: %w", a.Code, pipeline.ErrGone)
		}
		if got, err = one(ctx, t, scanApproval, there, a.Run, a.CallID); err != nil {
			return err
		}
		return enqueue(ctx, t, ds)
	})
	if err != nil {
		return pipeline.Approval{}, err
	}
	return got, nil
}

// Approval implements [pipeline.Store].
func (db *DB) Approval(ctx context.Context, key adapters.ThreadKey, code string) (pipeline.Approval, error) {
	const q = `
		SELECT ` + approvalColumns + ` FROM approvals
		WHERE channel = $1 AND room = $2 AND code = $3 ORDER BY id DESC LIMIT 1`
	return one(ctx, db, scanApproval, q, key.Channel, key.Room, code)
}

// OpenApprovals implements [pipeline.Store].
func (db *DB) OpenApprovals(ctx context.Context, key adapters.ThreadKey) ([]pipeline.Approval, error) {
	const q = `
		SELECT ` + approvalColumns + ` FROM approvals
		WHERE channel = $1 AND room = $2 AND state = 'open' ORDER BY id`
	return all(ctx, db, scanApproval, q, key.Channel, key.Room)
}

// DecideApproval implements [pipeline.Store].
func (db *DB) DecideApproval(ctx context.Context, d pipeline.Decide, at time.Time) error {
	return db.write(ctx, func(ctx context.Context, t *tx) error { return decide(ctx, t, d, at) })
}

// decide closes an open question, once. After its time only a no counts.
func decide(ctx context.Context, t *tx, d pipeline.Decide, at time.Time) error {
	switch d.State {
	case pipeline.ApprovalAllowed, pipeline.ApprovalDenied, pipeline.ApprovalExpired:
	default:
		return fmt.Errorf("decide approval %d: %q decides nothing", d.ID, d.State)
	}
	const q = `
		UPDATE approvals SET state = $2, decided_by = $3, note = $4, decided_at = $5
		WHERE id = $1 AND state = 'open' AND ($2 <> 'allowed' OR expires_at = 0 OR expires_at > $5)`
	return changed(t.exec(ctx, q, d.ID, string(d.State), d.By, d.Note, micros(at)))
}

// expireApprovals closes what a run that is over still asked.
func expireApprovals(ctx context.Context, t *tx, run session.RunID, at time.Time) error {
	const q = `UPDATE approvals SET state = 'expired', decided_at = $2 WHERE run = $1 AND state = 'open'`
	_, err := t.exec(ctx, q, string(run), micros(at))
	return err
}
