package storage_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	_ "modernc.org/sqlite"

	"trill/adapters"
	"trill/pipeline"
	"trill/storage"
)

// clients is how many wait at once in the benchmarks of accepting.
const clients = 64

func benchRow(n int64) pipeline.InboxRow {
	id := strconv.FormatInt(n, 10)
	return pipeline.InboxRow{State: pipeline.Received, Message: adapters.InboundMessage{
		Channel: "cloud", Platform: "nextcloud-talk", ID: adapters.MessageID(id), Digest: "digest-" + id, Kind: adapters.KindText,
		Room: "room", Thread: adapters.ThreadID(strconv.FormatInt(n%100, 10)),
		Sender: adapters.Person{ID: "users/alice", Name: "Alice"}, Text: strings.Repeat("words ", 60),
	}}
}

func closed(b *testing.B, closer func() error) {
	b.Helper()
	if err := closer(); err != nil {
		b.Error(err)
	}
}

// BenchmarkAccept stores one message a call for 64 clients; compare it with
// BenchmarkAcceptTwin, which is what this machine can do.
func BenchmarkAccept(b *testing.B) {
	db := open(b, storage.Config{Dir: b.TempDir()})
	var n atomic.Int64
	b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			ids, err := db.Accept(b.Context(), []pipeline.InboxRow{benchRow(n.Add(1))})
			if err != nil || ids[0] == 0 {
				b.Error(ids, err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkAcceptTwin is a group commit by hand over database/sql, with the
// statement and the schema of BenchmarkAccept.
func BenchmarkAcceptTwin(b *testing.B) {
	dir := b.TempDir()
	if err := open(b, storage.Config{Dir: dir}).Close(); err != nil {
		b.Fatal(err)
	}
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "trill.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=cache_size(-8000)")
	if err != nil {
		b.Fatal(err)
	}
	defer closed(b, pool.Close)
	ctx := context.Background()
	conn, err := pool.Conn(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer closed(b, conn.Close)
	const q = `
		INSERT INTO inbox (channel, message_id, digest, room, thread, person, state, reason, run, received_at, facts, content)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT DO NOTHING
		RETURNING id`
	insert, err := conn.PrepareContext(ctx, q)
	if err != nil {
		b.Fatal(err)
	}
	defer closed(b, insert.Close)
	type row struct {
		pipeline.InboxRow
		text string
		done chan error
	}
	queue := make(chan *row, 512)
	go func() {
		for first := range queue {
			batch := []*row{first}
			_, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE")
			for i := 0; err == nil; i++ {
				m, id := &batch[i].Message, 0
				err = insert.QueryRowContext(ctx, string(m.Channel), string(m.ID), m.Digest, string(m.Room), string(m.Thread),
					string(m.Sender.ID), "received", "", "", 0, `{"kind":"text"}`, batch[i].text).Scan(&id)
				if len(batch) == 512 {
					break
				}
				select {
				case r := <-queue:
					batch = append(batch, r)
					continue
				default:
				}
				break
			}
			if err == nil {
				_, err = conn.ExecContext(ctx, "COMMIT")
			}
			for _, r := range batch {
				r.done <- err
			}
		}
	}()
	defer close(queue)
	var n atomic.Int64
	b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := &row{InboxRow: benchRow(n.Add(1)), done: make(chan error, 1)}
			text, err := json.Marshal(map[string]string{"text": r.Message.Text})
			if err != nil {
				b.Error(err)
				return
			}
			r.text = string(text)
			queue <- r
			if err := <-r.done; err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
