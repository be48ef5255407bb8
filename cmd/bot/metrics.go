package main

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

// metrics counts what happens, for Prometheus.
type metrics struct {
	registry   *prometheus.Registry
	messages   *prometheus.CounterVec
	runs       *prometheus.CounterVec
	runTime    prometheus.Histogram
	turns      prometheus.Counter
	retries    prometheus.Counter
	toolCalls  *prometheus.CounterVec
	tokens     *prometheus.CounterVec
	deliveries *prometheus.CounterVec
	webhooks   *prometheus.HistogramVec
}

var _ pipeline.Observer = (*metrics)(nil)

func newMetrics(depth func(context.Context) (pipeline.Depth, error), log *slog.Logger) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		messages: counter("trill_messages_total", "Messages that came in, by what became of them.", "channel", "result"),
		runs:     counter("trill_runs_total", "Runs that ended, by how.", "reason"),
		runTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trill_run_seconds", Help: "Time from the start of a run to its end.",
			Buckets: []float64{.1, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600},
		}),
		turns:      prometheus.NewCounter(prometheus.CounterOpts{Name: "trill_turns_total", Help: "Answers of the model."}),
		retries:    prometheus.NewCounter(prometheus.CounterOpts{Name: "trill_model_retries_total", Help: "Model calls that failed and were tried again."}),
		toolCalls:  counter("trill_tool_calls_total", "Tool calls, by tool and result.", "tool", "result"),
		tokens:     counter("trill_tokens_total", "Tokens as the provider reported them.", "model", "kind"),
		deliveries: counter("trill_deliveries_total", "Tries to send a message, by where it stands after it.", "channel", "kind", "state"),
		webhooks: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trill_webhook_seconds", Help: "Time from a webhook request to its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"channel", "result"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "trill_build_info", Help: "The version that runs.",
		ConstLabels: prometheus.Labels{"version": version(), "go": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(
		m.messages, m.runs, m.runTime, m.turns, m.retries, m.toolCalls, m.tokens, m.deliveries, m.webhooks, build,
		&depthCollector{depth: depth, log: log},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

func (m *metrics) Accepted(ch adapters.Channel, state pipeline.InboxState) {
	result := string(state)
	if result == "" {
		result = "repeat"
	}
	m.messages.WithLabelValues(string(ch), result).Inc()
}

func (m *metrics) RunEvent(ev session.Event) {
	switch d := ev.Data.(type) {
	case *session.Assistant:
		m.turns.Inc()
		m.tokens.WithLabelValues(d.Model, "input").Add(float64(d.Usage.Input))
		m.tokens.WithLabelValues(d.Model, "cached_input").Add(float64(d.Usage.CachedInput))
		m.tokens.WithLabelValues(d.Model, "output").Add(float64(d.Usage.Output))
	case *session.ToolResult:
		result := "ok"
		if d.Failed {
			result = "failed"
		}
		m.toolCalls.WithLabelValues(d.Tool, result).Inc()
	case *session.Retry:
		m.retries.Inc()
	}
}

func (m *metrics) RunEnded(reason session.EndReason, took time.Duration) {
	m.runs.WithLabelValues(string(reason)).Inc()
	m.runTime.Observe(took.Seconds())
}

func (m *metrics) Delivered(ch adapters.Channel, kind pipeline.DeliveryKind, state pipeline.DeliveryState) {
	m.deliveries.WithLabelValues(string(ch), string(kind), string(state)).Inc()
}

// depthCollector counts what is open at the time of a scrape.
type depthCollector struct {
	depth func(context.Context) (pipeline.Depth, error)
	log   *slog.Logger
}

func (c *depthCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- inboxOpen
	ch <- inboxAge
	ch <- outboxOpen
	ch <- runsOpen
	ch <- approvalsOpen
}

var (
	inboxOpen     = prometheus.NewDesc("trill_inbox_open", "Messages that are not settled.", nil, nil)
	inboxAge      = prometheus.NewDesc("trill_inbox_oldest_seconds", "Age of the oldest message that is not settled.", nil, nil)
	outboxOpen    = prometheus.NewDesc("trill_outbox", "Outgoing messages that are not sent, by state.", []string{"state"}, nil)
	runsOpen      = prometheus.NewDesc("trill_runs_open", "Runs that are under way.", nil, nil)
	approvalsOpen = prometheus.NewDesc("trill_approvals_open", "Questions that wait for a person.", nil, nil)
)

func (c *depthCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	d, err := c.depth(ctx)
	if err != nil {
		c.log.Error("metrics: count open rows", "err", err)
		return
	}
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	age := 0.0
	if !d.InboxOldest.IsZero() {
		age = time.Since(d.InboxOldest).Seconds()
	}
	gauge(inboxOpen, float64(d.Inbox))
	gauge(inboxAge, age)
	gauge(runsOpen, float64(d.Runs))
	gauge(approvalsOpen, float64(d.Approvals))
	for _, s := range []pipeline.DeliveryState{pipeline.Pending, pipeline.Sending, pipeline.Ambiguous, pipeline.Held} {
		gauge(outboxOpen, float64(d.Outbox[s]), string(s))
	}
}
