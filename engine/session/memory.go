package session

import (
	"context"
	"fmt"
	"sync"
)

// Memory is a [Store] that forgets everything when the process ends: for tests
// and for programs that use the engine without a database.
type Memory struct {
	mu  sync.Mutex // guards all
	all map[ID][]Event
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{all: map[ID][]Event{}} }

// Append implements [Store].
func (m *Memory) Append(_ context.Context, evs ...Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[ID]int64{}
	for _, e := range evs {
		if _, ok := next[e.Session]; !ok {
			next[e.Session] = int64(len(m.all[e.Session])) + 1
		}
		if e.Seq != next[e.Session] {
			return fmt.Errorf("append event %d of %s: %w", e.Seq, e.Session, ErrConflict)
		}
		next[e.Session]++
	}
	for _, e := range evs {
		m.all[e.Session] = append(m.all[e.Session], e)
	}
	return nil
}

// Events implements [Store].
func (m *Memory) Events(_ context.Context, id ID, after int64, limit int) ([]Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	evs := m.all[id]
	evs = evs[min(max(after, 0), int64(len(evs))):]
	if limit > 0 && len(evs) > limit {
		evs = evs[:limit]
	}
	return append([]Event(nil), evs...), nil
}

// Prompt implements [Store].
func (m *Memory) Prompt(ctx context.Context, id ID) ([]Event, error) {
	evs, err := m.Events(ctx, id, 0, 0)
	for i := len(evs) - 1; i >= 0; i-- {
		if t, ok := evs[i].Data.(*Trim); ok {
			return evs[min(max(t.From, 1)-1, int64(len(evs))):], err
		}
	}
	return evs, err
}

// Last implements [Store].
func (m *Memory) Last(_ context.Context, id ID) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(len(m.all[id])), nil
}
