package storage_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"trill/engine/session"
	"trill/engine/session/sessiontest"
	"trill/pipeline/storetest"
	"trill/storage"
)

// start opens the database of a folder.
func start(t testing.TB, conf storage.Config) *storage.DB {
	t.Helper()
	db, err := storage.Open(t.Context(), conf, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// open opens the database of a folder, which is closed with the test.
func open(t testing.TB, conf storage.Config) *storage.DB {
	t.Helper()
	db := start(t, conf)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

func TestTranscripts(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) session.Store { return open(t, storage.Config{Dir: t.TempDir()}) })
}

func TestPipeline(t *testing.T) {
	var queries []string // of all tests
	storetest.Run(t, func(t *testing.T) storetest.Stores {
		dir := t.TempDir()
		db := start(t, storage.Config{Dir: dir})
		stop := sync.OnceFunc(func() {
			queries = append(queries, db.Queries()...)
			if err := db.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		t.Cleanup(stop)
		return storetest.Stores{
			Store: db,
			Reopen: func(t *testing.T) storetest.Store {
				stop()
				return open(t, storage.Config{Dir: dir})
			},
			Raw: func(t *testing.T) []byte {
				stop()
				var all []byte
				for _, name := range files(t, dir) {
					b, err := os.ReadFile(filepath.Join(dir, name))
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, b...)
				}
				return all
			},
		}
	})
	dir := t.TempDir()
	open(t, storage.Config{Dir: dir})
	slices.Sort(queries)
	noTableIsRead(t, dir, slices.Compact(queries))
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}
