import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Java's client library of mirrors, asked line by line: function, bootstrap, policy, then its arguments. */
public class RemoteClusterUtilsJudge {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Map<String, Object> props = new HashMap<>();
            props.put("bootstrap.servers", words[1]);
            props.put("replication.policy.class", "org.apache.kafka.connect.mirror." + words[2]);
            props.put("source.cluster.alias", words.length > 3 ? words[3] : "");
            switch (words[0]) {
                case "translate" -> tell(words[4], RemoteClusterUtils.translateOffsets(
                    props, words[3], words[4], Duration.ofSeconds(60)));
                case "translate-all" -> RemoteClusterUtils.translateOffsets(
                    props, words[3], Pattern.compile(words[4]), Duration.ofSeconds(60))
                    .forEach(RemoteClusterUtilsJudge::tell);
                case "hops" -> System.out.println("hops " + RemoteClusterUtils.replicationHops(props, words[3]));
                case "upstream" -> RemoteClusterUtils.upstreamClusters(props)
                    .forEach(one -> System.out.println("upstream " + one));
                case "heartbeats" -> RemoteClusterUtils.heartbeatTopics(props)
                    .forEach(one -> System.out.println("topic " + one));
                case "checkpoints" -> RemoteClusterUtils.checkpointTopics(props)
                    .forEach(one -> System.out.println("topic " + one));
                default -> throw new IllegalArgumentException(line);
            }
            System.out.println("end");
        }
    }

    private static void tell(String group, Map<TopicPartition, OffsetAndMetadata> offsets) {
        offsets.forEach((place, at) -> System.out.println(
            "at " + group + " " + place.topic() + " " + place.partition() + " " + at.offset() + " " + at.metadata()));
    }
}
