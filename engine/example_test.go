package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"trill/engine"
	"trill/engine/message"
	"trill/engine/provider"
	"trill/engine/session"
	"trill/engine/tool"
)

// fixed is a provider that asks for one tool call and then reports its result. A
// real one is in package engine/provider/openai.
type fixed struct{ call message.Call }

func (f fixed) Stream(_ context.Context, req provider.Request, onText func(string)) (*provider.Response, error) {
	last := req.Messages[len(req.Messages)-1]
	if last.Role == message.User {
		return &provider.Response{Calls: []message.Call{f.call}}, nil
	}
	text := "The tool says: " + last.Text
	onText(text)
	return &provider.Response{Text: text}, nil
}

func Example() {
	dir, err := os.MkdirTemp("", "workspace-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	eng, err := engine.New(engine.Config{
		Provider: fixed{message.Call{ID: "1", Tool: "list_dir", Args: json.RawMessage(`{"path":"."}`)}},
		Store:    session.NewMemory(),
		Tools:    []tool.Tool{tool.ListDir(), tool.ReadFile()},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for ev, err := range eng.Run(context.Background(), engine.Request{Text: "What is here?", Workspace: dir}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if ev.Stored != nil {
			fmt.Println(ev.Stored.Seq, ev.Stored.Kind)
		}
	}
	// Output:
	// 1 user
	// 2 assistant
	// 3 tool_result
	// 4 assistant
	// 5 end
}

// A call that a gate wants people to decide about is handed to Approve.
func ExampleRequest_approve() {
	dir, err := os.MkdirTemp("", "workspace-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	eng, err := engine.New(engine.Config{
		Provider: fixed{message.Call{ID: "1", Tool: "write_file", Args: json.RawMessage(`{"path":"a.txt","content":"hello"}`)}},
		Store:    session.NewMemory(),
		Tools:    []tool.Tool{tool.WriteFile()},
		Gates:    []tool.Gate{verdict{Decision: tool.Ask, Reason: "it writes"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	req := engine.Request{
		Text: "Write it.", Workspace: dir,
		Approve: func(_ context.Context, ask engine.Ask) (engine.Approval, error) {
			fmt.Printf("May %s run? %s.\n", ask.Call.Spec.Name, ask.Reason)
			return engine.Approval{Allowed: false, By: "me", Reason: "not today"}, nil
		},
	}
	for ev, err := range eng.Run(context.Background(), req) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if ev.Stored == nil {
			continue
		}
		if end, ok := ev.Stored.Data.(*session.End); ok {
			fmt.Println(end.Text)
		}
	}
	// Output:
	// May write_file run? it writes.
	// The tool says: Not allowed: not today
}
