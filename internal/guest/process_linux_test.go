package guest

import (
	"sync"
	"testing"
	"time"
)

// If this fails, what a process said last is lost where the machine had no time for the guest just then; or its
// end waits for a child that keeps its output.
func TestLastWordsOnABusyMachine(t *testing.T) {
	r, w, err := pipe2(0)
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{input: make(chan struct{}, 1), p: &process{done: closed}}
	p.outs = append(p.outs, r)
	p.log.init()
	p.killed.Store(true)
	if _, err := w.WriteString("bye"); err != nil {
		t.Fatal(err)
	}
	var pumps, rest, reaping sync.WaitGroup
	awake := make(chan struct{})
	rest.Add(1)
	pumps.Go(func() {
		<-awake
		p.pump(r, Stdout, sync.OnceFunc(rest.Done))
	})
	ps := &processes{s: &server{sameID: true}}
	told := make(chan struct{})
	reaping.Go(func() {
		p.reap(ps, &pumps, &rest)
		close(told)
	})
	select {
	case <-told:
		t.Error("its end is told before its output was read")
	case <-time.After(4 * killedGrace):
	}
	close(awake)
	<-told // though w is open
	if len(p.log.chunks) != 1 || string(p.log.chunks[0].data) != "bye" {
		t.Errorf("its output is %+v", p.log.chunks)
	}
	if _, err := w.WriteString("what a child says now is nobody's"); err != nil {
		t.Error(err)
	}
	w.Close()
	reaping.Wait()
	pumps.Wait()
	ps.s.wg.Wait()
	if p.log.head != 3 {
		t.Errorf("%d bytes of output", p.log.head)
	}
}
