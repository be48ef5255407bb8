package storage

import (
	"context"
	"time"

	"trill/engine/session"
	"trill/pipeline"
)

// usageRow is one model call as it is billed: tokens of attempts that gave
// nothing are paid for too.
type usageRow struct {
	session session.ID
	seq     int64
	run     session.RunID
	at      int64
	model   string
	sum     pipeline.Usage
}

func usageOf(e session.Event, a *session.Assistant) usageRow {
	return usageRow{
		session: e.Session, seq: e.Seq, run: e.Run, at: micros(e.Time), model: a.Model,
		sum: pipeline.Usage{
			Calls:       1,
			Input:       int64(a.Usage.Input) + int64(a.Wasted.Input),
			CachedInput: int64(a.Usage.CachedInput) + int64(a.Wasted.CachedInput),
			Output:      int64(a.Usage.Output) + int64(a.Wasted.Output),
			LastInput:   int64(a.Usage.Input),
		},
	}
}

func putUsage(ctx context.Context, t *tx, u usageRow) error {
	const q = `
		INSERT INTO usage (session, seq, run, at, model, input, cached_input, output)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	_, err := t.exec(ctx, q, string(u.session), u.seq, string(u.run), u.at, u.model, u.sum.Input, u.sum.CachedInput, u.sum.Output)
	return err
}

// add sums up b after a.
func add(a, b pipeline.Usage) pipeline.Usage {
	return pipeline.Usage{
		Calls:       a.Calls + b.Calls,
		Input:       a.Input + b.Input,
		CachedInput: a.CachedInput + b.CachedInput,
		Output:      a.Output + b.Output,
		LastInput:   b.LastInput,
	}
}

// ModelUsage is what one model was used for.
type ModelUsage struct {
	Model string
	pipeline.Usage
}

// UsageSince sums up the model calls of all sessions since then, by model as the
// provider named it. LastInput is not set.
func (db *DB) UsageSince(ctx context.Context, since time.Time) ([]ModelUsage, error) {
	const q = `
		SELECT model, COUNT(*), SUM(input), SUM(cached_input), SUM(output) FROM usage
		WHERE at >= $1 GROUP BY model ORDER BY model`
	return all(ctx, db, func(s scanner) (u ModelUsage, err error) {
		return u, s.Scan(&u.Model, &u.Calls, &u.Input, &u.CachedInput, &u.Output)
	}, q, micros(since))
}
