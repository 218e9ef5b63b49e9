// Package fanout puts questions about all nodes to the workers that are alive, and makes one answer of theirs. It is made of
// layers, each of which knows the next only:
//
//   - [Workers]: a question about all nodes becomes one about each range, and the answers are merged (filter.go, score.go,
//     dryrun.go);
//   - all ranges at once, the i-th to the i-th worker (askAll);
//   - one range: another worker is asked, too, when one fails or lets the question wait too long (ask);
//   - one call with its deadline (askOne).
//
// What is known of workers over many questions, how long answers usually take and who has failed to answer lately, is a
// [Fanout]'s. Nothing is kept of the answers: workers keep them. Who is alive is told.
package fanout
