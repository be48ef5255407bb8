package storage

import (
	"context"
	"time"

	"trill/pipeline"
)

// pruneChunk is how many rows are looked at, and removed, in one step, so that
// nobody waits long for the writer.
const pruneChunk = 500

// Prune removes the inbox rows of ignored messages that came in before a time, and
// returns how many. They hold no text and only keep a repeat from being looked at
// again, which would end the same way; all other rows stay. It reads the whole
// inbox up to that time, in steps.
func (db *DB) Prune(ctx context.Context, before time.Time) (removed int64, err error) {
	type row struct {
		id      pipeline.InboxID
		at      int64
		ignored bool
	}
	const page = `SELECT id, received_at, state FROM inbox WHERE id > $1 ORDER BY id LIMIT $2`
	scan := func(s scanner) (r row, err error) {
		var state pipeline.InboxState
		err = s.Scan(&r.id, &r.at, &state)
		r.ignored = state == pipeline.Ignored
		return r, err
	}
	for last := pipeline.InboxID(0); ; {
		rows, err := all(ctx, db, scan, page, last, pruneChunk)
		if err != nil || len(rows) == 0 {
			return removed, err
		}
		old := rows[:0:0]
		for _, r := range rows {
			last = r.id
			if r.at < micros(before) && r.ignored {
				old = append(old, r)
			}
		}
		if len(old) > 0 {
			// The newest row stays, whatever it is: its id must not come again.
			const q = `DELETE FROM inbox WHERE id = $1 AND state = 'ignored' AND id < (SELECT MAX(id) FROM inbox)`
			var n int64
			err := db.write(ctx, func(ctx context.Context, t *tx) error {
				n = 0
				for _, r := range old {
					gone, err := t.exec(ctx, q, r.id)
					if err != nil {
						return err
					}
					n += gone
				}
				return nil
			})
			removed += n
			if err != nil {
				return removed, err
			}
		}
		if rows[len(rows)-1].at >= micros(before) {
			return removed, nil
		}
	}
}
